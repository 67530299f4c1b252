"""Curves drawn with characters: a picture of some lines, and a sparkline of one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

#: The dots of a braille character by column and row, from U+2800 on.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.-=+*#@"
#: Columns below which numbers beside the picture take too much of it.
_LABELLED = 30


def picture(
    steps: Sequence[float],
    values: Sequence[float],
    width: int,
    height: int,
    *,
    unicode: bool = True,
) -> list[str]:
    """A curve with its smallest and largest value at its left, and first and last step below.

    A curve of one value has that value beside its line.

    Args:
        steps: where the values are, in order; at least one.
        values: finite numbers.
        width: columns of the whole.
        height: lines of the whole.
        unicode: draw with braille characters, of eight dots each, rather than with stars.
    """
    low, high = min(values), max(values)
    labels = [f"{high:.4g}", f"{low:.4g}"] if width >= _LABELLED else ["", ""]
    margin = max(map(len, labels)) + 1 if width >= _LABELLED else 0
    columns, rows = max(1, width - margin), max(1, height - 1)
    across, down = (2, 4) if unicode else (1, 1)
    grid = _line(steps, values, columns * across, rows * down)
    lines = [""] * rows
    for row in range(rows):
        for column in range(columns):
            lit = [
                (x, y)
                for x in range(across)
                for y in range(down)
                if (column * across + x, row * down + y) in grid
            ]
            if unicode:
                lines[row] += chr(0x2800 + sum(_DOTS[x][y] for x, y in lit)) if lit else " "
            else:
                lines[row] += "*" if lit else " "
    named = {0: labels[0], rows - 1: labels[1]} if rows > 1 else {0: labels[0]}
    if low == high:
        # One value has one label, where its line is.
        named = {min(y for _, y in grid) // down: labels[0]}
    first, last = f"{steps[0]:.10g}", f"{steps[-1]:.10g}"
    below = first if len(steps) == 1 else f"{first}{last:>{max(0, columns - len(first))}}"
    body = [f"{named.get(row, ''):>{max(0, margin - 1)}}{' ' * (margin > 0)}{line}".rstrip()
            for row, line in enumerate(lines)]  # fmt: skip
    return [*body, f"{'':{margin}}{below}"[:width]]


def _line(
    steps: Sequence[float], values: Sequence[float], width: int, height: int
) -> set[tuple[int, int]]:
    """The dots of straight lines through the points, ``(0, 0)`` at the top left."""
    first, span = steps[0], (steps[-1] - steps[0]) or 1.0
    low, range_ = min(values), (max(values) - min(values)) or 1.0
    flat = max(values) == min(values)

    def dot(step: float, value: float) -> tuple[int, int]:
        up = 0.5 if flat else (value - low) / range_
        x = round((step - first) / span * (width - 1))
        return min(width - 1, max(0, x)), round((1 - up) * (height - 1))

    dots = [dot(step, value) for step, value in zip(steps, values, strict=True)]
    grid = set(dots)
    for (x0, y0), (x1, y1) in itertools.pairwise(dots):
        count = max(abs(x1 - x0), abs(y1 - y0))
        grid |= {
            (round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count))
            for i in range(1, count)
        }
    return grid


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """The means of values in ``width`` parts, each as a bar of a character's height."""
    count = min(width, len(values))
    if count <= 0:
        return ""
    bounds = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(bounds)]
    low, range_ = min(means), max(means) - min(means)
    levels = _LEVELS if unicode else _PLAIN_LEVELS
    top = len(levels) - 1
    return "".join(levels[round((m - low) / range_ * top) if range_ else top // 2] for m in means)
