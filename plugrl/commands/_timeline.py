"""``plugrl runs show --timeline``: who was busy when, as text or JSON."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.commands._output import can_print, emit_json, emit_table, note

if TYPE_CHECKING:
    from plugrl.core.run.records.timeline_reader import TimelineView

_BLOCKS, _ASCII = " ░▒▓█", " .-+#"
#: Steps that are listed when nothing else is asked for.
_LISTED = 10


def show_timeline(folder: Path, *, last: int | None, as_json: bool) -> None:
    """Print the timeline of a run.

    Args:
        folder: the run folder.
        last: show only this many of the newest steps; None: everything.
        as_json: print all numbers instead of a drawing.

    Raises:
        UsageError: the timeline cannot be read.
    """
    from plugrl.core.errors import UsageError
    from plugrl.core.run.folder import summarize
    from plugrl.core.run.records.timeline_reader import read_timeline

    try:
        lanes = read_timeline(folder)
    except OSError as error:
        raise UsageError(f"cannot read the timeline of {folder}: {error.strerror}") from error
    state = summarize(folder).state
    if as_json:
        emit_json({"run": str(folder), "state": state, **_facts(lanes, last)})
        return
    if not lanes.end:
        note(f"{folder} has no timeline yet (state {state})")
        return
    for line in _drawing(lanes, last):
        print(line)
    print()
    emit_table(
        _steps(lanes, last or _LISTED, percent=True), ("step", "seconds", *_lane_names(lanes))
    )
    for remark in _remarks(lanes, state):
        note(remark)


def _lane_names(lanes: TimelineView) -> list[str]:
    return [*(name for name, busy in lanes.lanes.items() if busy.spans), "both"]


def _facts(lanes: TimelineView, last: int | None) -> dict[str, Any]:
    start, end = lanes.window(last)
    shares = lanes.shares(start, end)
    return {
        "seconds": round(end - start, 6),
        "processes": len(lanes.begins),
        "skipped_lines": lanes.skipped,
        "left_out": lanes.left_out,
        "lanes": {name: round(shares.pop(name), 6) for name in lanes.lanes},
        "both": round(shares["both"], 6),
        "steps": _steps(lanes, last, percent=False),
    }


def _steps(lanes: TimelineView, last: int | None, *, percent: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in lanes.last_steps(last):
        start, end = lanes.steps[step]
        shares = lanes.shares(start, end)
        written = {n: f"{s:.0%}" if percent else round(s, 6) for n, s in shares.items()}
        rows.append({"step": step, "seconds": round(end - start, 6), **written})
    return rows


def _drawing(lanes: TimelineView, last: int | None) -> list[str]:
    start, end = lanes.window(last)
    names = _lane_names(lanes)
    left = max(map(len, names)) + 2
    # A share of 100 % and the gap before it stand at the right.
    columns = max(20, shutil.get_terminal_size().columns - left - 6)
    marks = _BLOCKS if can_print(_BLOCKS) else _ASCII
    shares = lanes.shares(start, end)
    width = (end - start) / columns
    first, last_time = f"{start:.1f} s", f"{end:.1f} s"
    lines = [" " * left + first + last_time.rjust(columns - len(first))]
    for name in names:
        busy = lanes.both if name == "both" else lanes.lanes[name]
        bar = "".join(
            marks[_level(busy.seconds(start + i * width, start + (i + 1) * width), width)]
            for i in range(columns)
        )
        lines.append(f"{name:{left}}{bar}{shares[name]:6.0%}")
    begun = {int((t - start) / width) for t in lanes.begins[1:] if start <= t < end and width}
    if begun:
        bar = "".join("^" if i in begun else " " for i in range(columns))
        lines.append((" " * left + bar).rstrip() + " began again")
    return lines


def _level(seconds: float, width: float) -> int:
    """The shade of a column; any work at all is visible."""
    if width <= 0 or seconds <= 1e-9 * width:
        return 0
    return max(1, min(4, round(4 * seconds / width)))


def _remarks(lanes: TimelineView, state: str) -> list[str]:
    remarks = []
    if state == "running":
        remarks.append("the run goes on: what has not ended yet is not shown")
    if lanes.left_out:
        remarks.append("older spans were left out: a timeline keeps the newest")
    if lanes.skipped:
        remarks.append(f"{lanes.skipped} lines of the timeline cannot be read")
    return remarks
