"""Rounds of a benchmark in which each side trains, turn by turn, and what they add up to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _peers import Side

#: Of the phases from the start of a process on, the one that ratios compare.
LEARN = "learn"


def take_turns(
    scripts: Mapping[str, tuple[str, Path, Sequence[str]]], folder: Path
) -> dict[str, dict[str, Any]]:
    """All sides from their start to their reports, a turn of each after the other.

    Args:
        scripts: the Python, the script and the arguments of each side.
        folder: for what they print to stderr.

    Raises:
        BenchmarkError: a side failed.
    """
    sides: dict[str, Side] = {}
    reports: dict[str, dict[str, Any]] = {}
    try:
        for name, (python, script, words) in scripts.items():
            sides[name] = Side(python, script, words, folder)
        for side in sides.values():
            side.read()  # waits for its first turn
        while len(reports) < len(sides):
            for name, side in sides.items():
                if name in reports:
                    continue
                side.go()
                line = side.read()
                if line != "turn":
                    reports[name] = json.loads(line)
    finally:
        for side in sides.values():
            side.close() if len(reports) == len(sides) else side.kill()
    return reports


def rate(report: dict[str, Any], kind: str) -> float:
    """Steps per second of training; ``kind`` is ``seconds`` or ``cpu_seconds``."""
    return float(report["steps"] / report[kind][LEARN])


def _whole(report: dict[str, Any]) -> float:
    return float(report["steps"] / sum(report["seconds"].values()))


def summary(
    rounds: Sequence[dict[str, dict[str, Any]]], ratios: Mapping[str, str], against: str
) -> dict[str, Any]:
    """Medians over rounds; a ratio is the median of the ratios of a round.

    Args:
        rounds: the reports of each round by side.
        ratios: the name of the ratio of each side.
        against: the side that ratios are to.
    """
    rates = {
        "": [{name: rate(r, "seconds") for name, r in each.items()} for each in rounds],
        "cpu_": [{name: rate(r, "cpu_seconds") for name, r in each.items()} for each in rounds],
        "whole_": [{name: _whole(r) for name, r in each.items()} for each in rounds],
    }
    result: dict[str, Any] = {}
    for prefix, found in rates.items():
        for side, name in ratios.items():
            values = [each[side] / each[against] for each in found if against in each]
            result[f"{prefix}{name}"] = statistics.median(values) if values else None
            result[f"{prefix}{name}_by_round"] = values or None
    result["sides"] = {
        side: {
            f"{prefix}steps_per_second": statistics.median(each[side] for each in found)
            for prefix, found in rates.items()
        }
        | {
            "seconds_by_round": [each[side]["seconds"] for each in rounds],
            "cpu_seconds_by_round": [each[side]["cpu_seconds"] for each in rounds],
            "return_by_round": [each[side]["return"] for each in rounds],
        }
        for side in rounds[0]
    }
    return result
