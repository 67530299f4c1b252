"""A small curve as an inline picture, where no script draws: notebooks, model cards."""

from __future__ import annotations

from collections.abc import Sequence

_POINTS = 400
_WIDTH, _HEIGHT, _PAD = 360, 110, 4
_COLOUR = "#2563eb"


def curve_svg(points: Sequence[tuple[float, float]]) -> str:
    """A curve through (step, value) points, as an inline picture; at least one point."""
    if len(points) > _POINTS:
        stride = (len(points) - 1) / (_POINTS - 1)
        points = [points[round(i * stride)] for i in range(_POINTS)]
    steps, values = zip(*points, strict=True)
    x0, x1, y0, y1 = min(steps), max(steps), min(values), max(values)

    def place(step: float, value: float) -> tuple[float, float]:
        across = (step - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (value - y0) / (y1 - y0) if y1 > y0 else 0.5
        x = _PAD + across * (_WIDTH - 2 * _PAD)
        return round(x, 1), round(_HEIGHT - _PAD - up * (_HEIGHT - 2 * _PAD), 1)

    placed = [place(step, value) for step, value in points]
    if len(placed) == 1:
        shape = f'<circle cx="{placed[0][0]}" cy="{placed[0][1]}" r="2.5" fill="{_COLOUR}"/>'
    else:
        line = " ".join(f"{x},{y}" for x, y in placed)
        shape = f'<polyline points="{line}" fill="none" stroke="{_COLOUR}" stroke-width="1.5"/>'
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{shape}</svg>'
