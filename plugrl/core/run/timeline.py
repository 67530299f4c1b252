"""``timeline.jsonl``: what ran when, so that one sees what overlapped and what waited."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TIMELINE_FILE = "timeline.jsonl"


class Timeline:
    """Appends one JSON line for each span of time that something took.

    A line has ``lane`` (who worked, such as ``trainer``), ``name`` (at what), ``start`` and
    ``end`` (seconds of the Unix epoch) and the facts that were given besides. It may be used from
    several threads. Spans of a run that was killed and resumed stay: they were worked.

    Args:
        folder: the run folder; the file is made with the first span.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TIMELINE_FILE
        self._file: IO[str] | None = None
        self._lock = threading.Lock()
        # A clock that is set while the run goes on must not bend the spans.
        self._offset = time.time() - time.perf_counter()

    @contextlib.contextmanager
    def span(self, lane: str, name: str, **facts: Any) -> Iterator[None]:
        """Note how long the body of the ``with`` takes, also when it raises."""
        started = self.now()
        try:
            yield
        finally:
            self.note(lane, name, started, **facts)

    def now(self) -> float:
        """The time as spans have it."""
        return self._offset + time.perf_counter()

    def note(self, lane: str, name: str, start: float, **facts: Any) -> None:
        """Append a span that began at ``start``, a value of :meth:`now`, and ends now."""
        span = {"lane": lane, "name": name, "start": round(start, 6), "end": round(self.now(), 6)}
        line = json.dumps({**span, **facts}) + "\n"
        # A timeline that cannot be written must not end a run that goes well.
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._file is None:
                self._file = open(self._path, "a", 1, encoding="utf-8")  # noqa: SIM115
            self._file.write(line)

    def close(self) -> None:
        """Close the file; a later span opens it again."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            file, self._file = self._file, None
            if file is not None:
                file.close()
