"""``RunView``: a run on one screen, drawn anew from its folder while it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.cells import cell_len, chop_cells, set_cell_size

from plugrl.commands._curve import picture, sparkline
from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.folder import summarize
from plugrl.core.run.initialization import read_config
from plugrl.core.run.records.headline import headline_metric, lower_is_better
from plugrl.core.run.records.jsonl_file import parse_record, read_tail
from plugrl.core.run.records.records import METRICS_FILE, read_status
from plugrl.core.run.report.curves import Curve, Metrics
from plugrl.core.run.report.samples import readable
from plugrl.core.run.status_line import duration, short_number
from plugrl.core.wording import bounded, shown

#: Metrics that come first after the headline, by the end of their names.
_FIRST = ("/reward", "/mean_episode_return", "/loss", "/accuracy", "/response_length", "/entropy")
#: Bytes at the end of a file in which the newest samples are looked for.
_TAIL = 2**18
_SAMPLES, _LONGEST = 4, 2000
_WIDEST_SPARK, _TALLEST = 40, 14
_NOT_SHOWN = ("time/", "pool/")


class RunView:
    """What there is to see of a run now.

    Args:
        folder: the run folder.
        unicode: whether the terminal shows more than ASCII.
    """

    def __init__(self, folder: Path, *, unicode: bool = True) -> None:
        self._folder = folder
        self._unicode = unicode
        self._metrics = Metrics(folder / METRICS_FILE)
        self._names = _phase_names(folder)
        self.state = "running"

    def read(self) -> None:
        """Read what is new.

        Raises:
            RunError: the folder is gone, or cannot be read.
        """
        if not self._folder.is_dir():
            raise RunError(f"the run folder {display_path(self._folder)} is gone")
        try:
            self._metrics.read()
        except OSError as error:
            path = display_path(self._folder / METRICS_FILE)
            raise RunError(f"{path} cannot be read: {error.strerror}") from None

    def lines(self, width: int, height: int | None = None) -> list[str]:
        """The screen: state, headline with its curve, other metrics, newest samples.

        Args:
            width: columns.
            height: lines; None: as many as there are.
        """
        room = 10_000 if height is None else height
        top = [*self._state_lines(width), ""]
        headline = self._headline()
        curve: Curve | None = None
        if headline is None:
            top.append("no metrics yet" if self.state == "running" else "it has no metrics")
        else:
            metric, text, curve = headline
            top.append(text)
            rows = _TALLEST if height is None else max(3, min(_TALLEST, room // 3))
            points = curve.points(2 * width)
            top += picture(points["x"], points["y"], width, rows, unicode=self._unicode)
            top += self._others(metric, width, 12 if height is None else max(0, room // 4))
        top += self._sample_lines(width, max(0, room - len(top) - 1))
        return [_fitted(line, width) for line in top[:room]]

    def ending(self) -> str:
        """One line about how far the run is, or how it ended."""
        headline = self._headline()
        return ": ".join([self._state_lines()[0], *([headline[1]] if headline else [])])

    def _state_lines(self, width: int | None = None) -> list[str]:
        """Name, state and step, and what ended the run; in a narrow terminal the name is last."""
        summary = summarize(self._folder)
        self.state = summary.state
        name = f"{self._folder.resolve().parent.name}/{self._folder.name}"
        where = "" if summary.step is None else self._where(summary.step)
        since = _ago(summary.ended)
        parts = [summary.state, where, f"{since} ago" if since else ""]
        known = "  ".join(part for part in parts if part)
        lines = [f"{_one_line(name)}  {known}"]
        if width is not None and cell_len(lines[0]) > width:
            lines = [known, _one_line(name)]
        if summary.error and summary.state != "running":
            lines.append(_one_line(summary.error))
        return lines

    def _where(self, step: float) -> str:
        """A step of the run, as its phase counts it."""
        phases = [each for each in self._metrics.phases if each[0] <= step]
        if not phases:
            return f"step {step:.10g}"
        first, number = phases[-1]
        known = 0 < number <= len(self._names)
        name = self._names[number - 1] if known else f"phase {number}"
        return f"{_one_line(name)} step {step - first:.10g}"

    def _headline(self) -> tuple[str, str, Curve] | None:
        """The metric by which the run is judged, its numbers as a line, and its curve."""
        curves = self._metrics.curves
        try:
            status: Mapping[str, Any] = read_status(self._folder)
            metric = headline_metric(status, curves)
        except (PlugrlError, AttributeError, TypeError):  # a damaged status
            status, metric = {}, headline_metric({}, curves)
        metric = metric or next((name for name in self._ordered()), None)
        if metric is None:
            return None
        curve = curves[metric]
        step, best = curve.low if lower_is_better(status, metric) else curve.high
        first, last = curve.first[1], curve.last[1]
        arrow = "→" if self._unicode else "->"
        numbers = f"{first:.4g} {arrow} {last:.4g}, best {best:.4g} at {self._where(step)}"
        return metric, f"{_one_line(metric)}  {numbers}", curve

    def _ordered(self) -> list[str]:
        """The metrics that are shown, those that say most first."""
        names = [name for name in self._metrics.curves if not name.startswith(_NOT_SHOWN)]

        def place(name: str) -> int:
            return next((i for i, end in enumerate(_FIRST) if name.endswith(end)), len(_FIRST))

        return sorted(names, key=place)

    def _others(self, headline: str, width: int, most: int) -> Iterator[str]:
        """A line with a sparkline for each of the other metrics that say most."""
        names = [name for name in self._ordered() if name != headline][: max(0, most - 1)]
        if not names:
            return
        yield ""
        longest = min(max(map(len, names)), max(8, width // 2))
        for name in names:
            curve = self._metrics.curves[name]
            room = min(_WIDEST_SPARK, width - longest - 14)
            line = sparkline(curve.points()["y"], room, unicode=self._unicode)
            text = _fitted(_one_line(name), longest)
            yield f"{text:<{longest}}  {curve.last[1]:>10.4g}  {line}"

    def _sample_lines(self, width: int, room: int) -> Iterator[str]:
        """The newest samples, each in as many lines as there is room for."""
        samples = newest_samples(self._folder, _SAMPLES)
        # A step's samples say more than the last line of each.
        each = max(1, (room - 1) // max(1, len(samples)) - 1)
        left = room - 1
        for sample in samples:
            lines = list(_sample(sample, width, each))
            if left < len(lines):
                break
            if left == room - 1:
                yield ""
            left -= len(lines)
            yield from lines


def newest_samples(folder: Path, count: int) -> list[dict[str, Any]]:
    """The last records of the file in ``samples/`` that was written last; unreadable ones not."""
    found: list[tuple[float, Path]] = []
    for path in (folder / "samples").glob("*.jsonl"):
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:  # gone meanwhile
            continue
    for _, path in sorted(found, reverse=True):
        if records := _last_records(path, count):
            return records
    return []


def _last_records(path: Path, count: int) -> list[dict[str, Any]]:
    try:
        data, _ = read_tail(path, _TAIL)
    except OSError:
        return []
    records: list[dict[str, Any]] = []
    for line in reversed(data.split(b"\n")[:-1]):
        record = parse_record(line)
        if record is not None:
            records.append(record)
            if len(records) == count:
                break
    return records[::-1]


def _sample(record: Mapping[str, Any], width: int, most: int) -> list[str]:
    """A record as a line of what is known of it, and its texts."""
    about = [
        f"{key} {short_number(readable(record[key], 300))}"
        for key in ("step", "agent", "reward", "return", "length", "failure")
        if record.get(key) not in (None, "")
    ]
    texts = [record[key] for key in ("prompt", "answer") if isinstance(record.get(key), str)]
    if not texts:
        rest = {k: v for k, v in record.items() if k not in ("step", "reward", "tokens")}
        texts = [json.dumps(readable(rest), ensure_ascii=False)]
    # One line of the terminal for each line of the text.
    body = _plain("".join(texts)).split("\n")
    folded = [part for line in body for part in chop_cells(line, max(2, width)) or [""]]
    if len(folded) > most:
        # The end of an answer says more than its middle.
        head = max(0, most - 2)
        folded = [*folded[:head], *(["[...]"] if most > 1 else []), folded[-1]]
    return [f"-- {_one_line(', '.join(about))}", *folded]


def _plain(text: str) -> str:
    """A text of a model without what would steer a terminal, with tabs as spaces."""
    return shown(bounded(text, _LONGEST).encode("utf-8", "backslashreplace").decode()).expandtabs(4)


def _one_line(text: str) -> str:
    """The same of a name or a message: its first characters, without line breaks."""
    return " ".join(_plain(bounded(text, 300)).split())


def _fitted(line: str, width: int) -> str:
    """A line in at most ``width`` columns of a terminal, where some characters take two."""
    return line if cell_len(line) <= width else set_cell_size(line, width)


def _phase_names(folder: Path) -> Sequence[str]:
    try:
        phases = (read_config(folder).get("trainer") or {}).get("phases") or ()
        return [str(phase.get("name", "")) for phase in phases]
    except (PlugrlError, AttributeError, TypeError, OSError):
        return []


def _ago(when: str | None) -> str:
    try:
        past = datetime.now(UTC) - datetime.fromisoformat(str(when))
    except (ValueError, TypeError):
        return ""
    return f"{past.days} days" if past.days > 1 else duration(past.total_seconds())
