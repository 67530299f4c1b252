"""``places.json``: the processes on other machines that work for a run, and what they do."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plugrl.core.run.atomic_writes import write_json

PLACES_FILE = "places.json"
#: Seconds between two writings of the list.
_EVERY = 2.0
#: Shares of the time of a process, and their words.
_SHARES = (
    ("busy", "busy"),
    ("for_models", "waiting for models"),
    ("for_others", "waiting for other workers"),
    ("for_requests", "waiting for requests"),
)
#: One process: ``name``, ``node``, ``pid`` and ``versions``; ``seconds`` that it was used, those of
#: them in which it was ``busy`` or waited, and ``tokens``, where they are known.
Place = Mapping[str, Any]


class Places:
    """The list of a run, which is made of what its parts say of their processes.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[str, Callable[[], Sequence[Place]]] = {}
        self._rows: dict[str, Sequence[Place]] = {}
        self._written = 0.0

    def add(self, name: str, source: Callable[[], Sequence[Place]]) -> None:
        """Ask ``source`` for rows from now on, in the place of an earlier one of this name."""
        self._sources[name] = source

    def write(self, *, last: bool = False) -> None:
        """Write the list, now and then, and when the run ends; a full disk does not end the run."""
        now = time.monotonic()
        if not self._sources or (not last and now - self._written < _EVERY):
            return
        self._written = now
        # Of processes that have ended the last word is kept.
        self._rows |= {name: rows for name, of in self._sources.items() if (rows := of())}
        if self._rows:
            with contextlib.suppress(OSError):
                rows = [dict(row) for rows in self._rows.values() for row in rows]
                write_json(self._folder / PLACES_FILE, rows)


def read_places(folder: Path) -> dict[str, str]:
    """What each process was and did, by its name, in one line; empty: none worked elsewhere."""
    try:
        rows = json.loads((folder / PLACES_FILE).read_text(encoding="utf-8"))
        return {str(row["name"]): _described(row) for row in rows}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _described(row: Place) -> str:
    said = [str(row["versions"])]
    if "weights" in row:
        said.append(f"weights of version {int(row['weights'])}")
    if "seconds" in row:
        seconds = max(float(row["seconds"]), 1e-9)
        parts = [f"{float(row[key]) / seconds:.0%} {words}" for key, words in _SHARES if key in row]
        said.append(f"of {row.get('of', 'rollouts')} {', '.join(parts)}")
        said.append(f"{float(row['tokens']) / seconds:,.0f} tokens a second")
    return "; ".join(said)
