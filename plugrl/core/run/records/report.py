"""``report.html``: one static page about a run, with its curves as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.run.atomic_writes import dump_yaml, write_text
from plugrl.core.run.records.records import METRICS_FILE, read_jsonl
from plugrl.core.run.records.timeline_reader import read_timeline
from plugrl.core.run.records.web_page import page, table, text

REPORT_FILE = "report.html"
_POINTS = 400
_WIDTH, _HEIGHT, _PAD = 360, 110, 4
_SLICES, _SLICE, _LANE = 240, 3, 16
_COLOUR = "#2563eb"
_STYLE = (
    "table{margin:0}td,th{vertical-align:middle}svg{display:block}rect{fill:#2563eb}"
    "pre{background:#8881;padding:1em;overflow:auto}"
)


def write_report(folder: Path, status: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Write ``report.html`` from the metrics on disk.

    Raises:
        OSError: it could not be written.
    """
    series = curves(read_jsonl(folder / METRICS_FILE))
    facts = "".join(
        f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>"
        for name, value in status.items()
        if value is not None
    )
    head = ("metric", "last", "smallest", "largest", "over steps")
    metrics = table(head, [_row(name, points) for name, points in sorted(series.items())])
    body = (
        f"<table>{facts}</table><h2>Metrics</h2>{metrics}{_timeline(folder)}"
        f"<h2>Configuration</h2><pre>{text(dump_yaml(tree))}</pre>"
    )
    title = f"{folder.parent.name} / {folder.name}"
    write_text(folder / REPORT_FILE, page(title, body, style=_STYLE))


def curves(records: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Collect ``(step, value)`` of each metric, leaving out what is not a finite number."""
    series: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        step = record.get("step")
        if not isinstance(step, (int, float)):
            continue
        for name, value in record.items():
            if name in ("step", "time/unix") or not isinstance(value, (int, float)):
                continue
            if math.isfinite(value):
                series.setdefault(name, []).append((step, value))
    return series


def _row(name: str, points: list[tuple[float, float]]) -> list[str]:
    values = [value for _, value in points]
    numbers = (values[-1], min(values), max(values))
    return [text(name), *(f"{number:.5g}" for number in numbers), curve_svg(points)]


def _timeline(folder: Path) -> str:
    """The timeline as HTML; the darker a slice of time, the busier the lane."""
    try:
        lanes = read_timeline(folder)
    except OSError:
        return ""
    if not lanes.end:
        return ""
    shares = lanes.shares(0.0, lanes.end)
    rows = []
    for name, busy in {**lanes.lanes, "both": lanes.both}.items():
        if not busy.spans:
            continue
        width = lanes.end / _SLICES
        dark = (busy.seconds(i * width, (i + 1) * width) / width for i in range(_SLICES))
        shape = "".join(
            f'<rect x="{i * _SLICE}" width="{_SLICE}" height="{_LANE}" opacity="{share:.2f}"/>'
            for i, share in enumerate(dark)
            if share >= 0.005
        )
        bar = f'<svg width="{_SLICES * _SLICE}" height="{_LANE}" role="img">{shape}</svg>'
        rows.append((text(name), f"{100 * shares[name]:.0f} %", bar))
    return "<h2>Timeline</h2>" + table(("lane", "busy", f"{lanes.end:.1f} seconds"), rows)


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
