"""The place ``local``: this machine, as ``plugrl train``."""

from __future__ import annotations

import os
import shlex
import sys
from typing import ClassVar

from plugrl.core.launch.launcher import Launcher, LaunchJob


class LocalLauncher(Launcher):
    """Runs the command here, in place of this process; signals and exit code are its own.

    Components that need Ray start it as they do in ``plugrl train``.
    """

    remote: ClassVar[bool] = False

    def preview(self, job: LaunchJob) -> str:
        """The command line."""
        return f"plugrl {shlex.join(job.words_for(job.runs_folder))}\n"

    def start(self, job: LaunchJob) -> str:
        """Become the command; this does not return."""
        sys.stdout.flush()
        os.environ.update(job.variables)
        words = job.words_for(job.runs_folder)
        os.execv(sys.executable, [sys.executable, "-m", "plugrl", *words])
