"""``timeline.jsonl``: what ran when, to see what overlapped and what waited."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TIMELINE_FILE = "timeline.jsonl"
#: Maximum size in bytes; beyond it, the older half is dropped.
LIMIT = 16 * 2**20
#: The lane of remarks about the file: the start of a process, and dropped spans.
PROCESS, BEGIN, LEFT_OUT = "process", "begin", "left out"


class Timeline:
    """Appends one JSON line for each span of work; safe to use from several threads.

    A line has ``lane`` (who worked, such as ``trainer``), ``name`` (at what), ``start`` and
    ``end`` (seconds of the Unix epoch) and further fields. Spans after the checkpoint that a run
    resumes from stay, because that time was spent. A line of the lane ``process`` marks the start
    of each process of the run.

    Args:
        folder: the run folder; the file is created with the first span.
        limit: maximum size in bytes; beyond it, the older half is dropped.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._path = folder / TIMELINE_FILE
        self._limit = limit
        self._size = 0
        self._told = False
        self._file: IO[str] | None = None
        self._lock = threading.Lock()
        # Setting the system clock during the run must not distort spans.
        self._offset = time.time() - time.perf_counter()

    @contextlib.contextmanager
    def span(self, lane: str, name: str, **facts: Any) -> Iterator[None]:
        """Record the time that the body takes, even if it raises."""
        started = self.now()
        try:
            yield
        finally:
            self.note(lane, name, started, **facts)

    def now(self) -> float:
        """The current time, in the units of spans."""
        return self._offset + time.perf_counter()

    def note(self, lane: str, name: str, start: float, **facts: Any) -> None:
        """Append a span that began at ``start``, a value of :meth:`now`, and ends now."""
        line = _line(lane, name, start, self.now(), facts)
        # A timeline that cannot be written must not end a healthy run.
        with self._lock, contextlib.suppress(OSError, ValueError, TypeError):
            file = self._file or self._open()
            if not self._told:
                self._told = True
                line = _line(PROCESS, BEGIN, start, start, {"pid": os.getpid()}) + line
            file.write(line)
            self._size += len(line)
            if self._size > self._limit:
                self._drop_older_half()

    def _open(self) -> IO[str]:
        with open(self._path, "ab+") as file:
            self._size = file.tell()
            file.seek(max(0, self._size - 1))
            # A killed process may have left a partial line.
            if file.read(1) not in (b"", b"\n"):
                file.write(b"\n")
        self._file = open(self._path, "a", 1, encoding="utf-8")  # noqa: SIM115
        return self._file

    def _drop_older_half(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        now = self.now()
        fresh = self._path.with_name(f".{TIMELINE_FILE}.new")
        with open(self._path, "rb") as old, open(fresh, "w", 1, encoding="utf-8") as new:
            old.seek(-(self._limit // 2), os.SEEK_END)
            old.readline()
            new.write(_line(PROCESS, LEFT_OUT, now, now, {}))
            new.write(old.read().decode("utf-8", "replace"))
        os.replace(fresh, self._path)
        self._size = self._path.stat().st_size

    def close(self) -> None:
        """Close the file; a later span opens it again."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            file, self._file = self._file, None
            if file is not None:
                file.close()


def _line(lane: str, name: str, start: float, end: float, facts: dict[str, Any]) -> str:
    span = {"lane": lane, "name": name, "start": round(start, 6), "end": round(end, 6)}
    return json.dumps({**span, **facts}) + "\n"
