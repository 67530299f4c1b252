"""``TrackerGroup``: starts, feeds and ends the trackers of a run together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.run.records.records import METRICS_FILE, read_jsonl
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker
from plugrl.core.run.tracking.tracker_thread import Call, TrackerThread

#: Seconds that a checkpoint waits for trackers to catch up.
_BEFORE_CHECKPOINT = 5.0
_hanging: list[TrackerThread] = []


def tracker_hangs() -> bool:
    """Whether a call to a tracker that was given up is still running, so that exiting may hang."""
    return any(feed.hangs for feed in _hanging)


def make_tracked_run(
    folder: Path, tree: Mapping[str, Any], step: int, *, resumed: bool
) -> TrackedRun:
    """The description of a run that its trackers receive; ``tree`` is the configuration."""
    return TrackedRun(
        id=folder.name,
        folder=folder,
        step=step,
        resumed=resumed,
        experiment=str(tree.get("experiment_name") or "experiment"),
        project=str(tree.get("project_name") or ""),
        config=tree,
    )


class TrackerGroup:
    """The trackers of a run, each in its own thread; one that fails is switched off.

    Attributes:
        failures: names of the trackers that were switched off.
    """

    def __init__(self, trackers: Sequence[Tracker], timeout: float = 60.0) -> None:
        self.failures: list[str] = []
        self._timeout = timeout
        names = [_name(tracker) for tracker in trackers]
        double = {name for name, count in Counter(names).items() if count > 1}
        self._feeds = [
            TrackerThread(
                t, f"{name}[{i}]" if name in double else name, timeout, self.failures.append
            )
            for i, (t, name) in enumerate(zip(trackers, names, strict=True))
        ]
        self._started = False

    @property
    def is_pending(self) -> bool:
        """Whether there are trackers that have not been started."""
        return bool(self._feeds) and not self._started

    def start(self, run: TrackedRun) -> None:
        """Start all trackers; further calls do nothing."""
        if self.is_pending:
            self._started = True
            for feed in self._feeds:
                feed.start(run, lambda held: _missed_calls(run.folder, held, run.step))

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Send the metrics of a step."""
        for feed in self._feeds:
            feed.put("log", step, metrics)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Send a record, without the table of its tokens, which would be no cell of a table."""
        sent = {k: v for k, v in record.items() if k != "tokens" or not isinstance(v, Mapping)}
        for feed in self._feeds:
            feed.put("sample", name, sent)

    def drain(self) -> None:
        """Wait briefly until all trackers have caught up."""
        until = time.monotonic() + min(_BEFORE_CHECKPOINT, self._timeout)
        if self._started:
            for feed in self._feeds:
                feed.drain(until)

    def finish(self, outcome: str, artifacts: Mapping[str, Path] | None = None) -> None:
        """End all trackers that started, within ``timeout`` for all of them together."""
        if not self._started:
            return
        for feed in self._feeds:
            for name, path in (artifacts or {}).items():
                feed.put("artifact", name, path)
            feed.put("finish", outcome)
        until = time.monotonic() + self._timeout
        for feed in self._feeds:
            feed.close(until)
        _hanging.extend(feed for feed in self._feeds if feed.hangs)
        self._feeds = []


def _name(tracker: Tracker) -> str:
    try:
        return str(tracker.config.get("type") or type(tracker).__name__)
    except Exception:
        return type(tracker).__name__


def _missed_calls(folder: Path, held: int, step: int) -> list[Call]:
    """The calls that replay the records after step ``held``, up to ``step``, in order."""
    calls: list[tuple[int, int, Call]] = []
    for path in sorted((folder / "samples").glob("*.jsonl")):
        for record in read_jsonl(path):
            if isinstance(at := record.get("step"), int) and held < at <= step:
                calls.append((at, 0, ("sample", (path.stem, record))))
    for line in read_jsonl(folder / METRICS_FILE):
        at = line.pop("step", None)
        line.pop("time/unix", None)
        if isinstance(at, int) and held < at <= step:
            # The file has null for what is not finite.
            numbers = {name: value for name, value in line.items() if value is not None}
            calls.append((at, 1, ("log", (at, numbers))))
    return [call for _, _, call in sorted(calls, key=lambda item: item[:2])]
