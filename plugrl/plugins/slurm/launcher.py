"""The place ``slurm``: a batch job of SLURM with Ray on its nodes, through sbatch."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from plugrl.core.errors import UsageError
from plugrl.core.launch.launcher import JobState, Launcher, LaunchJob, LaunchStatus
from plugrl.plugins.slurm.script import script

#: SLURM's names of states, by how they begin.
_STATES: dict[str, JobState] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "COMPLETED": "succeeded",
    "CANCELLED": "stopped",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "PREEMPTED": "failed",
    "BOOT_FAIL": "failed",
    "DEADLINE": "failed",
}
_PAUSE = 2.0


class SlurmLauncher(Launcher):
    """Submits a run as a batch job: Ray on all nodes, the driver on the first.

    The nodes share the file system of the login node, so nothing travels: the job runs in the
    working directory of the launch, with its Python. Its log is there too, ``NAME-ID.log``.
    """

    remote: ClassVar[bool] = False

    def preview(self, job: LaunchJob) -> str:
        """The batch script.

        Raises:
            ConfigError: a value cannot stand in one.
        """
        return script(job)

    def start(self, job: LaunchJob) -> str:
        """Submit the script and return the number of the job.

        Raises:
            ConfigError: as :meth:`preview`.
            UsageError: there is no sbatch, or SLURM refuses the job.
        """
        said = _run("sbatch", "--parsable", given=script(job))
        # NUMBER or NUMBER;CLUSTER.
        return said.strip().partition(";")[0]

    def jobs(self) -> Sequence[LaunchStatus]:
        """The user's jobs of the last day, the newest first.

        Raises:
            UsageError: there is no sacct, or it fails.
        """
        words = ("-X", "-P", "-n", "-S", "now-1day", "-o", "JobID,State,JobName")
        lines = _run("sacct", *words).splitlines()
        return [_status(line) for line in reversed(lines) if line.strip()]

    def status(self, name: str) -> LaunchStatus:
        """Where a job stands.

        Raises:
            UsageError: there is no sacct, it fails, or there is no such job.
        """
        _check_number(name)
        lines = _run("sacct", "-X", "-P", "-n", "-j", name, "-o", "JobID,State,JobName")
        if not lines.strip():
            raise UsageError(f"SLURM has no job {name!r}; see plugrl jobs list --on slurm")
        return _status(lines.splitlines()[0])

    def logs(self, name: str, *, follow: bool) -> Iterator[str]:
        """The log of a job that was launched from the working directory.

        Raises:
            UsageError: there is no sacct, or no such job or log.
        """
        status = self.status(name)
        file = Path(f"{status.message}-{name}.log")
        with_end = not follow
        place = 0
        while True:
            ended = with_end or self.status(name).ended
            if file.exists():
                with file.open(encoding="utf-8", errors="replace") as opened:
                    opened.seek(place)
                    text = opened.read()
                    place = opened.tell()
                if text:
                    yield text
            elif ended:
                raise UsageError(
                    f"{file} is not in this folder; jobs keep their logs where they were launched"
                )
            if ended:
                return
            time.sleep(_PAUSE)

    def stop(self, name: str) -> None:
        """Send SIGTERM to the script of a job, which hands it on to the run.

        Raises:
            UsageError: there is no scancel, or SLURM refuses.
        """
        _check_number(name)
        _run("scancel", "--batch", "--signal=TERM", name)


def _check_number(name: str) -> None:
    if not re.fullmatch(r"\d+(_\d+)?", name):
        raise UsageError(f"{name!r} is no number of a job; see plugrl jobs list --on slurm")


def _status(line: str) -> LaunchStatus:
    number, state, name = (*line.split("|", 2), "", "")[:3]
    # Such as CANCELLED by 1000.
    return LaunchStatus(number, _STATES.get(state.split()[0] if state else "", "unknown"), name)


def _run(program: str, *words: str, given: str = "") -> str:
    if shutil.which(program) is None:
        raise UsageError(
            f"there is no {program} on the PATH; launch from a login node of the cluster, or "
            "submit what --dry-run prints there"
        )
    ran = subprocess.run([program, *words], input=given, capture_output=True, text=True)
    if ran.returncode:
        text = " ".join(ran.stderr.split())[:300]
        raise UsageError(f"{program} failed: {text or 'it says nothing'}")
    return ran.stdout
