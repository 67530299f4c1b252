"""Runs beside each other, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugrl.core.run.report.contents import RunContents, differences


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """What two or more runs have come to, and what differs in their configurations.

    Args:
        folders: of the runs.

    Returns:
        ``runs``, the identity of each; and by name, with a value for each run: ``facts``, the last
        value of all ``metrics`` but times, and those values of the ``configuration`` that differ.
    """
    runs = [RunContents(folder).read(share=len(folders)) for folder in folders]
    headlines = [run["headline"] or {} for run in runs]
    facts: dict[str, list[Any]] = {
        "state": [run["state"] for run in runs],
        "step": [run["step"] for run in runs],
        "headline": [each.get("metric") for each in headlines],
    }
    for key in ("first", "last", "best"):
        facts[key] = [each[key][1] if key in each else None for each in headlines]
    tables = [run["curves"]["metrics"] for run in runs]
    names = sorted({name for table in tables for name in table if not name.startswith("time/")})
    return {
        "runs": [
            {"experiment": run["experiment"], "id": run["id"], "path": str(folder)}
            for run, folder in zip(runs, folders, strict=True)
        ],
        "facts": facts,
        "metrics": {
            name: [table[name]["last"][1] if name in table else None for table in tables]
            for name in names
        },
        "configuration": {row["key"]: row["values"] for row in differences(runs)},
    }
