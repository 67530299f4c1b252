"""``RunContents``: everything that a report says of one run, read from its folder."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from plugrl.core.config.sources.origins import dotted
from plugrl.core.errors import ConfigError
from plugrl.core.run.folder import LOCK_FILE as PLUGINS_FILE
from plugrl.core.run.folder import summarize
from plugrl.core.run.initialization import ORIGINS_FILE, read_config, read_yaml
from plugrl.core.run.records.environment import ENVIRONMENT_FILE
from plugrl.core.run.records.headline import headline_metric, lower_is_better
from plugrl.core.run.records.jsonl_file import read_tail
from plugrl.core.run.records.places import read_places
from plugrl.core.run.records.records import METRICS_FILE, read_status
from plugrl.core.run.records.timeline_reader import read_timeline
from plugrl.core.run.report.curves import Metrics, curves_as_json, readable_name
from plugrl.core.run.report.samples import Samples, read_film, readable

#: Points of all curves of a page, in each of the runs' shares.
_POINTS = 70_000
#: Bytes of JSON for samples, and the part of a long timeline that a page of a live run is made of.
_SAMPLES, _LIVE_TIMELINE = 1_400_000, 2**20
_LOG_TAIL = 2**18
_MOST_EVENTS = 200
_SLICES = 240
_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ ([A-Z]+) (\S+): (.*)")
_PACKAGES = ("torch", "transformers", "tensordict", "torchrl", "numpy")


class RunContents:
    """What a page shows of a run; it is read again and again while the run goes on.

    Args:
        folder: the run folder; nothing in it has to be there or to be sound.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = Metrics(folder / METRICS_FILE)
        self.samples = Samples(folder)
        self._fixed: dict[str, Any] | None = None

    def read(
        self, status: Mapping[str, Any] | None = None, *, share: int = 1, live: bool = False
    ) -> dict[str, Any]:
        """The contents as plain values.

        Args:
            status: of a run that this process owns; None: that of the folder.
            share: of how many runs the page is, which divides its size.
            live: read the end of a long timeline only.
        """
        notes: list[str] = []
        try:
            self.metrics.read()
        except OSError as error:
            notes.append(f"{METRICS_FILE} cannot be read: {error.strerror}")
        known, state = self._status(status)
        metrics = self.metrics
        if metrics.skipped:
            lines = "line" if metrics.skipped == 1 else "lines"
            notes.append(f"{metrics.skipped} {lines} of {METRICS_FILE} could not be read")
        if metrics.left_out:
            notes.append(f"{len(metrics.left_out)} metrics are left out of this page")
        if not metrics.curves:
            notes.append("there are no metrics yet" if state == "running" else "it has no metrics")
        if self._fixed is None:
            self._fixed = _fixed_parts(self.folder)
        most = min(1000, max(20, _POINTS // share // max(1, len(metrics.curves))))
        return {
            "id": readable(self.folder.name, 300),
            "experiment": readable(self.folder.resolve().parent.name, 300),
            "state": state,
            **{
                key: readable(known.get(key))
                for key in ("step", "started", "resumed", "ended", "error")
            },
            "headline": self._headline(known),
            "curves": curves_as_json(metrics.curves, most),
            "phases": self._phases(),
            "events": self._events(),
            "time": _time(self.folder, live=live),
            "samples": self.samples.read(_SAMPLES // share),
            "film": read_film(self.folder) if share == 1 else None,
            "notes": readable(notes),
            **{key: value for key, value in self._fixed.items() if key != "phase_names"},
        }

    def _status(self, own: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
        if own is not None:
            return own, str(own.get("state"))
        summary = summarize(self.folder)
        try:
            status = read_status(self.folder)
        except ConfigError:
            status = {}
        return {**status, "step": summary.step, "error": summary.error}, summary.state

    def _headline(self, status: Mapping[str, Any]) -> dict[str, Any] | None:
        curves = self.metrics.curves
        metric = headline_metric(status, curves)
        if metric is None:
            return None
        curve, lower = curves[metric], lower_is_better(status, metric)
        best = curve.low if lower else curve.high
        return {
            "metric": readable_name(metric),
            "lower": lower,
            "first": curve.first,
            "last": curve.last,
            "best": best,
        }

    def _phases(self) -> list[dict[str, Any]]:
        names = (self._fixed or {}).get("phase_names", [])
        return [
            {"step": step, "name": names[n - 1] if 0 < n <= len(names) else f"phase {n}"}
            for step, n in self.metrics.phases[:100]
        ]

    def _events(self) -> list[dict[str, Any]]:
        """Warnings and errors of the log, resumes, and values that were not finite, by step."""
        times, steps = self.metrics.times.steps, self.metrics.times.points()["y"]
        found = []
        for line in _log(self.folder).splitlines():
            match = _LOG_LINE.match(line)
            if match is None:
                continue
            when, level, _, message = match.groups()
            if level not in ("WARNING", "ERROR", "CRITICAL") and "resumed from" not in message:
                continue
            try:
                stamp = datetime.strptime(when, "%Y-%m-%d %H:%M:%S").timestamp()
            except (ValueError, OverflowError):
                continue
            at = min(bisect_left(times, stamp), len(times) - 1)
            step = steps[at] if times else 0
            found.append({"step": step, "level": level.lower(), "text": readable(message, 300)})
        found += [
            {"step": step, "level": "warning", "text": f"{readable(name, 200)} was not finite"}
            for step, name in self.metrics.not_finite
        ]
        return sorted(found, key=lambda event: event["step"])[-_MOST_EVENTS:]


def _log(folder: Path) -> str:
    try:
        return read_tail(folder / "log.txt", _LOG_TAIL)[0].decode("utf-8", "replace")
    except OSError:
        return ""


def _time(folder: Path, *, live: bool) -> dict[str, Any] | None:
    """How long each lane was busy, and in which parts of the time."""
    try:
        view = read_timeline(folder, _LIVE_TIMELINE) if live else read_timeline(folder)
    except OSError:
        return None
    if not view.end:
        return None
    width = view.end / _SLICES
    lanes = [
        {
            "name": readable(name, 40),
            "seconds": round(busy.seconds(0.0, view.end), 2),
            "slices": [
                round(100 * busy.seconds(i * width, (i + 1) * width) / width)
                for i in range(_SLICES)
            ],
        }
        for name, busy in {**view.lanes, "both": view.both}.items()
        if busy.spans
    ]
    return {"end": round(view.end, 2), "lanes": lanes, "whole": not view.left_out}


def _fixed_parts(folder: Path) -> dict[str, Any]:
    """What does not change while a run goes on: configuration, plugins, environment."""
    tree: Mapping[str, Any] = {}
    fault = None
    try:
        tree = read_config(folder, "shown", private=False)
    except ConfigError as error:
        fault = str(error)
    trainer = tree.get("trainer")
    phases = trainer.get("phases") if isinstance(trainer, Mapping) else None
    names = [
        readable(str(phase.get("name", f"phase {number}")), 80)
        for number, phase in enumerate(phases if isinstance(phases, list) else [], start=1)
        if isinstance(phase, Mapping)
    ]
    environment = _json(folder / ENVIRONMENT_FILE)
    environment = environment if isinstance(environment, dict) else {}
    packages = environment.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    facts = {key: environment.get(key) for key in ("plugrl", "python", "platform", "gpus",
             "git_commit", "command")}  # fmt: skip
    facts |= {name: packages[name] for name in _PACKAGES if name in packages}
    facts |= read_places(folder)
    return {
        "phase_names": names,
        "seed": readable(tree.get("seed"), 100),
        "config": _config_rows(folder, tree),
        "config_fault": readable(fault),
        "plugins": _plugins(folder),
        "environment": {k: readable(v) for k, v in facts.items() if v not in (None, [], "")},
    }


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str, Any]]:
    """Dotted keys and values that hold no others; an empty mapping or list is one."""
    if isinstance(value, Mapping) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, str(key)))]
    if isinstance(value, list) and value:
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
    return [(dotted(path), value)]


def _config_rows(folder: Path, tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each value; of one that differs from the recipe, ``was`` is what its file says."""
    origins, differing = _origins(folder)
    said = _base_values(folder)
    rows = []
    for key, value in leaves(tree) if tree else []:
        row: dict[str, Any] = {"key": readable(key, 300), "value": _written(value)}
        if key in origins:
            row["origin"] = readable(origins[key], 300)
        if key in differing:
            # The file itself may be what differs from a recipe below it.
            known = key in said and said[key] != value
            row["was"] = _written(said[key]) if known else None
        rows.append(row)
    return rows


def _origins(folder: Path) -> tuple[dict[str, str], set[str]]:
    """The place of each key that somebody wrote, and the keys that differ from the recipe.

    There are none of a run that is older than the file.
    """
    written = _json(folder / ORIGINS_FILE)
    written = written if isinstance(written, dict) else {}
    table, differing = written.get("origins"), written.get("differing")
    places = table.items() if isinstance(table, dict) else ()
    keys = differing if isinstance(differing, list) else ()
    return {k: str(place) for k, place in places}, {k for k in keys if isinstance(k, str)}


def _base_values(folder: Path) -> dict[str, Any]:
    """The values of the file that was trained from, before overrides."""
    import yaml

    try:
        tree = read_yaml(folder / "config.input.yaml")
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return dict(leaves(tree)) if isinstance(tree, dict) else {}


def _written(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value, 500)
    return readable(json.dumps(value, ensure_ascii=False, default=str), 500)


def _plugins(folder: Path) -> list[dict[str, Any]]:
    lock = _json(folder / PLUGINS_FILE)
    rows = [row for row in lock if isinstance(row, dict)] if isinstance(lock, list) else []
    keys = ("kind", "name", "distribution", "version", "target", "source")
    used = [row for row in rows if row.get("used")]
    return [{key: readable(str(row.get(key) or ""), 200) for key in keys} for row in used]


def differences(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The keys in which the configurations of several contents differ, with a value for each."""
    tables = [{row["key"]: row["value"] for row in run["config"]} for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    absent = "(absent)"
    rows = [{"key": key, "values": [table.get(key, absent) for table in tables]} for key in keys]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]
