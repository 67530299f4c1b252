"""Trackers: where metrics and samples go besides the files of the run folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.component import Component
from plugrl.core.config.schema import described
from plugrl.core.run.metrics import JsonlFile

if TYPE_CHECKING:
    from plugrl.core.run.run import Run

log = logging.getLogger("plugrl.run")


class Tracker(Component):
    """Base class of trackers. Every method may be left out; an exception disables the tracker.

    A constructor raises ``PluginError`` when a package that the tracker needs is missing.
    """

    def start(self, run: Run) -> None:
        """Begin. ``run.step`` is the step that a resumed run continues after, otherwise 0."""

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Take the metrics of a step."""

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Take one record, such as a generated text; ``record["step"]`` is its step."""

    def finish(self, outcome: str) -> None:
        """End; ``outcome`` is done, failed, interrupted or terminated."""


class JsonlTracker(Tracker):
    """Appends metrics to a JSONL file, such as one that collects several runs.

    The run folder always has its own ``metrics.jsonl``, also without this tracker.
    """

    @dataclass
    class Config:
        """Where the lines go."""

        path: str | None = described(
            None, "file to append to; null: metrics.jsonl of the run folder and nothing else"
        )

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        path = self.config.get("path")
        self._file = JsonlFile(Path(path)) if path else None
        self._run = ""

    def start(self, run: Run) -> None:
        """Remember which run the lines belong to."""
        self._run = run.id

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Append one line with run, step and metrics."""
        if self._file is not None:
            self._file.append({"run": self._run, "step": step, **metrics})

    def finish(self, outcome: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class TrackerGroup:
    """The trackers of a run; one that fails is logged once and left out from then on."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._active = list(trackers)
        self._started = False
        self.failures: list[str] = []

    def start(self, run: Run) -> None:
        """Start all trackers; further calls do nothing."""
        if not self._started:
            self._started = True
            self._each("start", run)

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Hand the metrics of a step on."""
        if self._active:
            self._each("log", step, metrics)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Hand a record on."""
        if self._active:
            self._each("sample", name, record)

    def finish(self, outcome: str) -> None:
        """End all trackers that started."""
        if self._started:
            self._each("finish", outcome)
        self._active = []

    def _each(self, method: str, *arguments: Any) -> None:
        for tracker in list(self._active):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                self._active.remove(tracker)
                name = type(tracker).__name__
                self.failures.append(name)
                log.warning(
                    "the tracker %s failed in %s() and is left out from now on: %s: %s",
                    name,
                    method,
                    type(error).__name__,
                    error,
                )
                log.debug("traceback of the tracker %s", name, exc_info=True)
