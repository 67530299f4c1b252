"""``StatusLine``: one line of a terminal that says how far a run is, at every width."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_GAP = "  "
#: Columns of the bar: below the first it is left out, beyond the last it says no more.
_LEAST_BAR, _GOOD_BAR, _LONGEST_BAR = 8, 20, 40
#: Characters of a description that has to make room, and of an activity.
_CUT, _ACTIVITY = 12, 9


def short_number(value: float | int | str) -> str:
    """A number as a person reads it beside others."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Seconds as ``1:02`` or ``1:02:03``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Pace:
    """How long what is left will take, by the latest units that were completed."""

    def __init__(self, started: float) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=50)
        self._started = started

    def update(self, completed: int, now: float) -> None:
        """Note that ``completed`` units are done; the first note may be that of a resumed run."""
        if not self._marks:
            # The only time that is known of the first unit. What a resumed run had done before is
            # none of it.
            self._marks.append((self._started, completed - 1))
        if completed > self._marks[-1][1]:
            self._marks.append((now, completed))

    def left(self, total: int | None, now: float) -> float | None:
        """Seconds until ``total`` units are done; None: nobody knows yet."""
        if total is None or len(self._marks) < 2:
            return None
        (since, first), (latest, last) = self._marks[0], self._marks[-1]
        each = (latest - since) / (last - first)
        return max(0.0, each * (total - last) - (now - latest))


@dataclass(frozen=True)
class Parts:
    """A line: text, a bar of some columns (0: none), and more text."""

    left: str
    bar: int
    right: str

    @property
    def width(self) -> int:
        """The columns that it takes."""
        return len(self.left) + self.bar + len(self.right)


@dataclass(frozen=True)
class StatusLine:
    """What a status line has to say.

    Attributes:
        description: what is counted, such as the name of a phase.
        completed: units that are done.
        total: units in all; None: nobody knows.
        elapsed: seconds since it began.
        left: seconds until its end; None: nobody knows yet.
        numbers: name and text of each number, the most important first.
        activity: what the run is at, such as ``rollout``.
    """

    description: str
    completed: int | None
    total: int | None
    elapsed: float
    left: float | None = None
    numbers: Sequence[tuple[str, str]] = ()
    activity: str = ""

    def arranged(self, width: int) -> Parts:
        """Its parts in at most ``width`` columns: as many of them as there is room for."""
        full = [f"{name} {value}" for name, value in self.numbers]
        short = [f"{name} {value}" for name, value in _short_names(self.numbers[:2])]
        values = [value for _, value in self.numbers[:1]]
        name, time = self.description, self._time
        cut = name if len(name) <= _CUT else f"{name[: _CUT - 1]}~"
        # From all that matters to what still says something in a corner of the screen.
        choices = [
            (name, full[:2], time, _LEAST_BAR),
            (name, short, time, _LEAST_BAR),
            (cut, short, time, _LEAST_BAR),
            (cut, short, time, 0),
            (cut, short[:1], time, 0),
            ("", short[:1], time, 0),
            ("", values, time, 0),
            ("", values, "", 0),
            ("", [], "", 0),
        ]
        for description, numbers, when, bar in choices:
            parts = self._parts(description, numbers, when, bar if self.total else 0)
            if parts.width <= width:
                break
        if parts.width > width:
            return Parts((parts.left + parts.right)[: max(0, width)], 0, "")
        if numbers == full[:2]:
            parts = self._with_more(parts, name, full, width)
        longest = min(_LONGEST_BAR, parts.bar + width - parts.width)
        return Parts(parts.left, longest, parts.right) if parts.bar else parts

    def _with_more(self, parts: Parts, name: str, full: Sequence[str], width: int) -> Parts:
        """Add the activity, then further numbers, while the bar keeps a good length."""
        bar = _GOOD_BAR if self.total else 0
        wider = self._parts(name, full[:2], self._time, bar, self.activity)
        if wider.width > width:
            return parts
        for count in range(3, len(full) + 1):
            more = self._parts(name, full[:count], self._time, bar, self.activity)
            if more.width > width:
                break
            wider = more
        return wider

    def _parts(
        self,
        description: str,
        numbers: Sequence[str],
        time: str,
        bar: int,
        activity: str | None = None,
    ) -> Parts:
        count = "" if self.completed is None else str(self.completed)
        if self.completed is not None and self.total is not None:
            # So wide from the beginning that nothing moves when a digit is added.
            count = f"{self.completed:>{len(str(self.total))}}/{self.total}"
        what = "" if activity is None else f"{activity:<{_ACTIVITY}}"
        left = _GAP.join(part for part in (description, count, what) if part)
        right = _GAP.join(part for part in (time, *numbers) if part)
        gap = _GAP if left and (right or bar) else ""
        after = _GAP if bar and right else ""
        return Parts(left + gap, bar, after + right)

    @property
    def _time(self) -> str:
        if self.total is None:
            return duration(self.elapsed)
        return "-:-- left" if self.left is None else f"{duration(self.left)} left"


def _short_names(numbers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names without what they have in common with one another, or without their family."""
    names = [name.rpartition("/")[2] for name, _ in numbers]
    if len(set(names)) < len(names):
        names = [name.partition("/")[0] for name, _ in numbers]
    if len(set(names)) < len(names):
        names = [name for name, _ in numbers]
    return [(name, value) for name, (_, value) in zip(names, numbers, strict=True)]


def padded(
    numbers: Mapping[str, float | int | str], widths: dict[str, int]
) -> list[tuple[str, str]]:
    """Names and texts of numbers, each as wide as it ever was, so that the line stands still.

    Args:
        numbers: those of now, in order.
        widths: of each name so far; it is updated.
    """
    texts = []
    for name, value in numbers.items():
        text = short_number(value)
        if isinstance(value, float) and math.isfinite(value):
            widths[name] = max(widths.get(name, 6), len(text))
        texts.append((name, text.ljust(widths.get(name, 0))))
    return texts
