"""``Curve``: a metric over the steps in bounded memory, whatever the length of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugrl.core.run.records.jsonl_file import parse_record
from plugrl.core.run.report.samples import LARGEST_STEP, readable

#: Points that a curve keeps at most; beyond it, neighbours are merged.
MOST_POINTS = 1000
#: Metrics that are kept of a run.
MOST_CURVES = 1000
#: Bytes that are read at once.
_CHUNK = 2**23

#: A picture cannot show what is beyond.
_LARGEST = 1e300


class Curve:
    """Points of a metric, of which each stands for as many lines as the length requires.

    A point has the step of its last line, the mean of their values, the smallest and the largest.
    First, last, smallest and largest value are exact.

    Attributes:
        count: how many values there were.
        width: how many values a point stands for.
    """

    __slots__ = ("_fill", "_high", "_low", "_made", "_made_for", "_most", "_sum", "count", "first",
                 "high", "last", "low", "steps", "width")  # fmt: skip

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self.count, self.width, self._fill = 0, 1, 1
        self.steps: list[float] = []
        self._sum: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self.first = self.last = self.low = self.high = (0.0, math.nan)
        #: What :meth:`points` gave, and for how many points in one and how many values in a point.
        self._made: dict[str, list[float]] = {}
        self._made_for = (0, 0)

    def add(self, step: float, value: float) -> None:
        """Append a finite value; steps do not fall."""
        self.last = (step, value)
        if not self.count:
            self.first = self.low = self.high = self.last
        elif value < self.low[1]:
            self.low = self.last
        elif value > self.high[1]:
            self.high = self.last
        self.count += 1
        if self._fill == self.width or not self.steps:
            self.steps.append(step)
            self._sum.append(value)
            self._low.append(value)
            self._high.append(value)
            self._fill = 1
            if len(self.steps) > self._most:
                self._halve()
            return
        self._fill += 1
        self.steps[-1] = step
        self._sum[-1] += value
        self._low[-1] = min(self._low[-1], value)
        self._high[-1] = max(self._high[-1], value)

    def _halve(self) -> None:
        """Merge neighbours; a point that is left over is filled by the values that follow."""
        odd = len(self.steps) % 2
        self.steps = [*self.steps[1::2], *self.steps[len(self.steps) - odd :]]
        self._sum = [sum(self._sum[i : i + 2]) for i in range(0, len(self._sum), 2)]
        self._low = [min(self._low[i : i + 2]) for i in range(0, len(self._low), 2)]
        self._high = [max(self._high[i : i + 2]) for i in range(0, len(self._high), 2)]
        self._fill += 0 if odd else self.width
        self.width *= 2

    def points(self, most: int = MOST_POINTS) -> dict[str, list[float]]:
        """``x`` and ``y``, and ``low`` and ``high`` where a point stands for several values.

        Args:
            most: how many points there are at most.
        """
        k = max(1, math.ceil(len(self.steps) / most))
        if self._made_for != (k, self.width):
            self._made_for = (k, self.width)
            keys = ("x", "y", "low", "high") if k * self.width > 1 else ("x", "y")
            self._made = {key: [] for key in keys}
        made, count = self._made, len(self.steps)
        # All but the last one stay as they were for the page before.
        for values in made.values():
            del values[-1:]
        for start in range(k * len(made["x"]), count, k):
            end = min(start + k, count)
            lacking = self.width - self._fill if end == count else 0
            made["x"].append(self.steps[end - 1])
            made["y"].append(
                _short(sum(self._sum[start:end]) / ((end - start) * self.width - lacking))
            )
            if "low" in made:
                made["low"].append(_short(min(self._low[start:end])))
                made["high"].append(_short(max(self._high[start:end])))
        return {key: list(values) for key, values in made.items()}


def readable_name(metric: str) -> str:
    """The name of a metric without characters that would steer the page."""
    return str(readable(metric, 200))


def _short(value: float) -> float:
    """A value with the digits that a picture can show."""
    return float(f"{value:.5g}")


@dataclass
class Metrics:
    """The curves of ``metrics.jsonl``, followed while it grows.

    Attributes:
        curves: by metric.
        times: the step over the seconds of the Unix epoch.
        phases: (first step, number) of each phase of a run of phases.
        not_finite: the first (step, metric) whose value was no finite number.
        skipped: lines that could not be read.
        left_out: metrics beyond :data:`MOST_CURVES`.
    """

    path: Path
    curves: dict[str, Curve] = field(default_factory=dict)
    times: Curve = field(default_factory=Curve)
    phases: list[tuple[float, int]] = field(default_factory=list)
    not_finite: list[tuple[float, str]] = field(default_factory=list)
    skipped: int = 0
    left_out: set[str] = field(default_factory=set)
    _offset: int = 0
    _latest: bytes = b""

    def read(self) -> None:
        """Read the lines that are new; a file that a resume cut is read again.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            return
        with file:
            # The file may have grown again behind the cut, so the latest line is compared.
            file.seek(max(0, self._offset - len(self._latest)))
            if file.read(len(self._latest)) != self._latest:
                self.__init__(self.path)  # type: ignore[misc]
                file.seek(0)
            rest = b""
            while chunk := file.read(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._offset += len(line) + 1
                    self._latest = line + b"\n"
                    self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        record = parse_record(line) or {}
        step: Any = record.get("step")
        if type(step) not in (int, float) or not abs(step) < LARGEST_STEP:
            self.skipped += bool(line.strip())
            return
        for name, value in record.items():
            if name in ("step", "phase", "time/unix"):
                continue
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                if len(self.not_finite) < 50:
                    self.not_finite.append((step, name))
            elif isinstance(value, (int, float)) and abs(value) < _LARGEST:
                curve = self.curves.get(name) or self._new_curve(name)
                if curve is not None:
                    curve.add(step, value)
        if isinstance(unix := record.get("time/unix"), (int, float)):
            self.times.add(unix, step)
        if isinstance(phase := record.get("phase"), int) and (
            not self.phases or self.phases[-1][1] != phase
        ):
            self.phases.append((step, phase))

    def _new_curve(self, name: str) -> Curve | None:
        if len(self.curves) >= MOST_CURVES:
            self.left_out.add(name)
            return None
        return self.curves.setdefault(name, Curve())


def curves_as_json(curves: dict[str, Curve], most: int) -> dict[str, Any]:
    """Curves for the page; metrics of the same steps share them.

    Args:
        curves: by metric.
        most: points of each curve.
    """
    shared: dict[tuple[float, ...], int] = {}
    found = {}
    for name, curve in curves.items():
        points = curve.points(most)
        steps: Sequence[float] = points.pop("x")
        number = shared.setdefault(tuple(steps), len(shared))
        extremes = {key: [at, _short(value)] for key, (at, value) in (
            ("first", curve.first), ("last", curve.last), ("min", curve.low), ("max", curve.high),
        )}  # fmt: skip
        found[readable_name(name)] = {"x": number, **points, **extremes, "count": curve.count}
    return {"steps": [list(steps) for steps in shared], "metrics": found}
