"""``Tracker``: where metrics and samples go besides the files of the run folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.component import Component

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of its run.

    Attributes:
        id: name of the run folder, ``<time>-<id>``; the same after a resume.
        folder: the run folder.
        step: the last step before this start: of a resumed run that of its checkpoint; -1: none.
        resumed: whether the run was begun before; without a checkpoint it begins anew.
        experiment: ``experiment_name``.
        project: ``project_name``; empty when there is none.
        config: the whole configuration, without credentials and with references to variables of
            the environment in place of their values.
    """

    id: str
    folder: Path
    step: int = -1
    resumed: bool = False
    experiment: str = "experiment"
    project: str = ""
    config: Mapping[str, Any]


class Tracker(Component):
    """Base class of trackers. Every method may be left out.

    The methods are called in order, in one thread that the run does not wait for. One that raises,
    or that takes longer than ``settings.tracker_timeout``, switches the tracker off; run and other
    trackers go on. The constructor is called in the main thread: import packages there, and
    raise ``PluginError`` when that fails.
    """

    #: Packages that must be importable; `validate` looks for them.
    packages: ClassVar[tuple[str, ...]] = ()
    #: What installs them, such as ``plugrl-x[board]``.
    requirement: ClassVar[str] = ""
    #: What to do when the tracker fails, as the end of a sentence.
    remedy: ClassVar[str] = ""

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Look for :attr:`packages`."""
        missing = [name for name in cls.packages if not _is_installed(name)]
        if missing:
            needed = cls.requirement or " ".join(missing)
            yield (
                f"{check.path}.type",
                f"the tracker {check.section.type} needs the package {' and '.join(missing)}, "
                f'which is not installed: pip install "{needed}"',
            )

    def start(self, run: TrackedRun) -> int | None:
        """Begin, or go on with what an interrupted run left.

        Returns:
            Of a resumed run the last step that is safely here: what came between it and
            ``run.step`` is given again. ``None``: nothing is missing.
        """
        return None

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Take the metrics of a step, those of evaluations included; values may be NaN."""

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Take one record, such as a generated text; ``record["step"]`` is its step."""

    def flush(self) -> None:
        """Write what is buffered: called when nothing more waits, and before a checkpoint."""

    def artifact(self, name: str, path: Path) -> None:
        """Take a file at the end of the run: its report."""

    def finish(self, outcome: str) -> None:
        """End; ``outcome`` is done, failed, interrupted or terminated."""


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
