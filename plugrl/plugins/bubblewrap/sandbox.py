"""The sandbox ``bubblewrap``: one more wall around the processes that run programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.sandbox.inside.program import READABLE, readable
from plugrl.core.sandboxes import LocalSandbox

#: The folder of plugrl's package.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass
class BubblewrapConfig:
    """Options of the sandbox ``bubblewrap``."""

    program: str = described("bwrap", "the program of bubblewrap: a name or a path")


class BubblewrapSandbox(LocalSandbox):
    """Programs run within bubblewrap, which is to be installed, and confined as by ``local``.

    See https://github.com/containers/bubblewrap. What runs them has namespaces of its own and sees
    Python, plugrl and nothing else of the machine before it confines each program.
    """

    Config: ClassVar[type] = BubblewrapConfig

    def command(self, words: Sequence[str]) -> Sequence[str]:
        """These words within bubblewrap.

        Raises:
            ConfigError: it is not installed.
        """
        program = shutil.which(self.config.program)
        if program is None:
            raise ConfigError(
                f"sandbox bubblewrap: there is no program {self.config.program!r}; install "
                "bubblewrap, name its program, or use sandbox=local"
            )
        options = ["--unshare-all", "--new-session", "--proc", "/proc", "--dev", "/dev"]
        options += ["--tmpfs", "/tmp"]
        for path in (*readable(), _PACKAGE):
            if path in READABLE and path.startswith("/dev"):
                continue
            if os.path.islink(path):
                options += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                options += ["--ro-bind", path, path]
        return [program, *options, "--", *words]
