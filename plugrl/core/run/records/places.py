"""``places.json``: the processes on other machines that worked for a run, and what they did."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.run.atomic_writes import write_json

PLACES_FILE = "places.json"


def write_places(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the list of a run folder; a disk that takes none does not end the run."""
    with contextlib.suppress(OSError):
        write_json(folder / PLACES_FILE, list(rows))


def read_places(folder: Path) -> dict[str, str]:
    """What each process was and did, by its name, in one line; empty: none worked elsewhere."""
    try:
        rows = json.loads((folder / PLACES_FILE).read_text(encoding="utf-8"))
        return {str(row["name"]): _described(row) for row in rows}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _described(row: Mapping[str, Any]) -> str:
    seconds = max(float(row["seconds"]), 1e-9)
    waits = ", ".join(
        f"{float(row[key]) / seconds:.0%} {words}"
        for key, words in (
            ("busy", "busy"),
            ("for_models", "waiting for models"),
            ("for_others", "waiting for other workers"),
        )
    )
    rate = float(row["tokens"]) / seconds
    return f"{row['versions']}; of rollouts {waits}; {rate:,.0f} tokens a second"
