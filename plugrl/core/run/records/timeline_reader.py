"""Reads ``timeline.jsonl``: which lane was busy when, and what overlapped."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from plugrl.core.run.records.jsonl_file import parse_record, read_tail
from plugrl.core.run.records.timeline import LEFT_OUT, LIMIT, PROCESS, TIMELINE_FILE

#: Lanes in the order in which a step uses them; others follow.
LANES = ("rollout", "train", "sync", "validate", "checkpoint")
_MOST_LANES = 12
#: No clock shows a later time; a line with a larger number is damaged.
_LATEST = 1e11
Span = tuple[float, float]


class BusyIntervals:
    """The times at which something was busy: a union of spans."""

    def __init__(self, spans: Iterable[Span]) -> None:
        merged: list[Span] = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        self.spans = merged
        self._starts = [start for start, _ in merged]
        self._sums = [0.0, *accumulate(end - start for start, end in merged)]

    def seconds(self, start: float, end: float) -> float:
        """The busy time between two times."""
        return self._seconds_before(end) - self._seconds_before(start)

    def _seconds_before(self, time: float) -> float:
        index = bisect_right(self._starts, time)
        if not index:
            return 0.0
        start, end = self.spans[index - 1]
        return self._sums[index - 1] + min(time, end) - start

    def intersection(self, other: BusyIntervals) -> BusyIntervals:
        """The times at which both were busy."""
        both: list[Span] = []
        mine = theirs = 0
        while mine < len(self.spans) and theirs < len(other.spans):
            one, two = self.spans[mine], other.spans[theirs]
            start, end = max(one[0], two[0]), min(one[1], two[1])
            if start < end:
                both.append((start, end))
            if one[1] < two[1]:
                mine += 1
            else:
                theirs += 1
        return BusyIntervals(both)


@dataclass
class TimelineView:
    """The timeline of a run on a time axis without the gaps between its processes.

    Attributes:
        lanes: the busy times of each lane.
        both: the times at which rollouts and training overlapped.
        steps: start and end of each step, without checkpoints; for a repeated step, the last time.
        begins: the starts of the processes of the run.
        end: the end of the axis.
        skipped: the number of unreadable lines.
        left_out: whether older spans are missing.
    """

    lanes: dict[str, BusyIntervals]
    both: BusyIntervals
    steps: dict[int, Span]
    begins: list[float]
    end: float
    skipped: int
    left_out: bool

    def shares(self, start: float, end: float) -> dict[str, float]:
        """The fraction of a time range in which each lane was busy, and ``both`` were."""
        whole = (end - start) or 1.0
        found = {name: busy.seconds(start, end) / whole for name, busy in self.lanes.items()}
        return found | {"both": self.both.seconds(start, end) / whole}

    def window(self, last: int | None) -> Span:
        """The time range of the last steps; None: the whole axis."""
        steps = self.last_steps(last)
        if last is None or not steps:
            return 0.0, self.end
        return min(self.steps[step][0] for step in steps), self.end

    def last_steps(self, last: int | None) -> list[int]:
        """The numbers of the last steps, in order."""
        ordered = sorted(self.steps)
        return ordered if last is None else ordered[-last:]


@dataclass
class _ProcessSpans:
    """The spans of one process of the run."""

    lanes: dict[str, list[Span]] = field(default_factory=dict)
    steps: dict[int, Span] = field(default_factory=dict)
    begin: float = _LATEST
    end: float = 0.0

    def add(self, lane: str, span: Span, step: Any) -> None:
        if lane not in self.lanes and len(self.lanes) >= _MOST_LANES:
            lane = "other"
        self.lanes.setdefault(lane, []).append(span)
        self.begin, self.end = min(self.begin, span[0]), max(self.end, span[1])
        if type(step) is int and lane != "checkpoint":
            start, end = self.steps.get(step, span)
            self.steps[step] = (min(start, span[0]), max(end, span[1]))


def read_timeline(folder: Path, limit: int = 2 * LIMIT) -> TimelineView:
    """Read the timeline of a run, even while it is written, in bounded memory.

    Args:
        folder: the run folder; without a timeline all lanes are empty.
        limit: the number of bytes to read, counted from the end.

    Raises:
        OSError: the file exists but cannot be read.
    """
    try:
        data, left_out = read_tail(folder / TIMELINE_FILE, limit)
    except FileNotFoundError:
        data, left_out = b"", False
    processes, skipped = [_ProcessSpans()], 0
    for line in io.BytesIO(data):
        parsed = _parse_line(line)
        if parsed is None:
            # A line without an end is still being written, or its process was killed.
            skipped += bool(line.strip()) and line.endswith(b"\n")
            continue
        lane, name, span, step = parsed
        if lane == PROCESS:
            left_out |= name == LEFT_OUT
            if name != LEFT_OUT:
                processes.append(_ProcessSpans())
        else:
            processes[-1].add(_lane_name(lane, name), span, step)
    return _join_processes([p for p in processes if p.lanes], skipped, left_out)


def _parse_line(line: bytes) -> tuple[str, str, Span, Any] | None:
    record = parse_record(line) or {}
    try:
        lane, name, start, end = (record[key] for key in ("lane", "name", "start", "end"))
        # False for NaN, too.
        sound = 0 <= start <= end <= _LATEST
    except (KeyError, TypeError):
        return None
    if not sound or not (isinstance(lane, str) and isinstance(name, str)):
        return None
    return lane, name, (float(start), float(end)), record.get("step")


def _lane_name(lane: str, name: str) -> str:
    """The lane of a span: each phase of the trainer is one; unusual names share ``other``."""
    known = name if lane == "trainer" else lane
    return known if known.isprintable() and 0 < len(known) <= 20 else "other"


def _join_processes(processes: list[_ProcessSpans], skipped: int, left_out: bool) -> TimelineView:
    """Concatenate the processes, without the time between them."""
    lanes: dict[str, list[Span]] = {name: [] for name in LANES}
    steps: dict[int, Span] = {}
    begins, now = [], 0.0
    for process in processes:
        moved = now - process.begin
        for name, spans in process.lanes.items():
            lane = name if name in lanes or len(lanes) < _MOST_LANES else "other"
            lanes.setdefault(lane, []).extend((a + moved, b + moved) for a, b in spans)
        # A process repeats the steps after the checkpoint that it resumed from.
        first = min(process.steps, default=None)
        if first is not None:
            steps = {step: span for step, span in steps.items() if step < first}
        steps |= {step: (a + moved, b + moved) for step, (a, b) in process.steps.items()}
        begins.append(now)
        now += process.end - process.begin
    busy = {name: BusyIntervals(spans) for name, spans in lanes.items()}
    both = busy["rollout"].intersection(busy["train"])
    return TimelineView(busy, both, steps, begins, now, skipped, left_out)
