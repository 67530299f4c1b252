"""``Tracker``: sends metrics and samples to another place than the run folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.component import Component
from plugrl.core.config.pick import shown_name

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The description of a run that its trackers receive.

    Attributes:
        id: name of the run folder, ``<time>-<id>``; the same after a resume.
        folder: the run folder.
        step: the last step before this start; in a resumed run, that of its checkpoint; -1: none.
        resumed: whether the run is resumed; without a checkpoint it starts over.
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
    """Base class of trackers. Every method is optional.

    The methods are called in order, in a thread that the run does not wait for. A method that
    raises, or takes longer than ``settings.tracker_timeout``, switches the tracker off; the run and
    the other trackers go on. The constructor is called in the main thread: import packages there,
    and raise ``PluginError`` if that fails.
    """

    #: Packages that must be importable; `plugrl validate` checks them.
    packages: ClassVar[tuple[str, ...]] = ()
    #: The requirement that installs them, such as ``plugrl-x[board]``.
    requirement: ClassVar[str] = ""
    #: What to do when the tracker fails, as the end of a sentence.
    remedy: ClassVar[str] = ""

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Check that :attr:`packages` are installed."""
        missing = [name for name in cls.packages if not _is_installed(name)]
        if missing:
            needed = cls.requirement or " ".join(missing)
            tracker = shown_name(check.section, "tracker")
            yield (
                f"{check.path}.type",
                f"the tracker {tracker} needs the package {' and '.join(missing)}, "
                f'which is not installed: pip install "{needed}"',
            )

    def start(self, run: TrackedRun) -> int | None:
        """Start a run, or continue one that was interrupted.

        Returns:
            For a resumed run, the last step that is safely stored; the records between it and
            ``run.step`` are sent again. None: nothing is missing.
        """
        return None

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Log the metrics of a step or an evaluation; values may be NaN."""

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Log one record, such as a generated text; ``record["step"]`` is its step."""

    def flush(self) -> None:
        """Write buffered data; called when the queue is empty, and before a checkpoint."""

    def artifact(self, name: str, path: Path) -> None:
        """Store a file at the end of the run, such as its report."""

    def finish(self, outcome: str) -> None:
        """End the run; ``outcome`` is done, failed, interrupted or terminated."""


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return sys.modules[name] is not None
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
