"""``Launcher``: a place where runs are started, such as a cluster, and what it starts."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from plugrl.core.component import Component
from plugrl.core.config.schemas.resource import ResourceConfig
from plugrl.core.errors import UsageError
from plugrl.core.factory import make_component

JobState = Literal["pending", "running", "succeeded", "failed", "stopped", "unknown"]
#: States after which a job does not change any more.
ENDED = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class LaunchJob:
    """One command line of plugrl, and what it needs elsewhere.

    Attributes:
        name: of the job, made of the experiment's name and a tag or the time.
        words: the command line after ``plugrl``. Paths in it are relative to ``folder``.
        resumes: whether it continues a run, by ``plugrl resume``.
        folder: the working directory here.
        files: the files that travel, absolute. Their places relative to ``folder`` stay the same.
        runs_folder: where the job writes its runs; relative: the launcher decides below what.
        resource: the section ``resource``.
        variables: environment variables whose values may be shown.
        secrets: environment variables whose values may not, and that the place has itself.
        packages: distributions whose versions have to be the same there, plugrl among them.
        engines: whether the job needs machines for inference engines of its own.
    """

    name: str
    words: tuple[str, ...]
    folder: Path
    resumes: bool = False
    files: tuple[Path, ...] = ()
    runs_folder: str = "runs"
    resource: ResourceConfig = field(default_factory=ResourceConfig)
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    engines: bool = True

    def words_for(self, runs_folder: str) -> tuple[str, ...]:
        """The command line, with the folder of the runs as the place sees it."""
        if self.resumes:
            return (*self.words, "--runs-folder", runs_folder)
        # In quotes it is read as text, whatever its characters.
        return (*self.words, f"settings.runs_folder={json.dumps(runs_folder)}")


@dataclass(frozen=True)
class LaunchStatus:
    """Where a job stands.

    Attributes:
        name: as :meth:`Launcher.start` returned it.
        state: one of :data:`JobState`.
        message: what the place says of it, in one line; may be empty.
    """

    name: str
    state: JobState
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether it does not change any more."""
        return self.state in ENDED


class Launcher(Component, ABC):
    """Starts jobs in one sort of place; subclass it for another.

    ``--address`` is the key ``address`` of its section, for those whose ``Config`` has it. Text of
    a configuration reaches a launcher with whatever characters a user wrote: it is quoted, or sent
    as data. Values of ``secrets`` are never sent, only where they are kept.
    """

    #: Whether the terminal follows a job until it ends, unless the user detaches.
    follows: ClassVar[bool] = False
    #: Whether the files of the job have to travel; else the place reads them where they are here.
    remote: ClassVar[bool] = True
    #: Bytes of files that may travel with one job.
    most_bytes: ClassVar[int] = 100_000_000

    @abstractmethod
    def preview(self, job: LaunchJob) -> str:
        """What :meth:`start` would send, as text; nothing is sent.

        Raises:
            ConfigError: the place cannot take the job.
        """

    @abstractmethod
    def start(self, job: LaunchJob) -> str:
        """Send a job and return its name there.

        Raises:
            ConfigError: the place cannot take the job.
            UsageError: the place cannot be reached, or has a job of this name.
        """

    def jobs(self) -> Sequence[LaunchStatus]:
        """The jobs that the place knows, the newest first.

        Raises:
            UsageError: it cannot be reached, or has no list.
        """
        raise UsageError("this place keeps no list of jobs; plugrl runs list shows the runs")

    def status(self, name: str) -> LaunchStatus:
        """Where a job stands.

        Raises:
            UsageError: the place cannot be reached, or has no such job.
        """
        found = next((job for job in self.jobs() if job.name == name), None)
        if found is None:
            raise UsageError(f"there is no job {name!r}; see plugrl jobs list")
        return found

    def logs(self, name: str, *, follow: bool) -> Iterator[str]:
        """What a job has printed, in pieces of any size; with ``follow`` until it ends.

        Raises:
            UsageError: the place cannot be reached, or has no such job.
        """
        raise UsageError(f"{type(self).__name__} keeps no logs; they are in the run folder")

    def stop(self, name: str) -> None:
        """Ask a job to stop, as SIGTERM does: it saves a checkpoint at the end of its step.

        Raises:
            UsageError: the place cannot be reached, or has no such job.
        """
        raise UsageError(f"{type(self).__name__} stops no jobs")


def find_launcher(place: str, address: str | None = None) -> Launcher:
    """The launcher of a place.

    Raises:
        PlugrlError: there is none of this name, it cannot be loaded, or takes no address.
    """
    section = {"type": place} if address is None else {"type": place, "address": address}
    launcher: Launcher = make_component("launcher", section)
    return launcher
