"""``JsonlFile``: a file with a record a line, which a power cut or a resume leaves whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from plugrl.core.run.atomic_writes import disk_error


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None: it is cut, damaged or something else."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            # Other programs write what JSON lacks, such as NaN.
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def read_tail(path: Path, limit: int) -> tuple[bytes, bool]:
    """The whole lines among the last ``limit`` bytes of a file, and whether others came before.

    The last line may be one that is being written.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        is_cut = file.seek(0, os.SEEK_END) > limit
        file.seek(-limit if is_cut else 0, os.SEEK_END if is_cut else os.SEEK_SET)
        data = file.read(limit)
    return (data.partition(b"\n")[2] if is_cut else data), is_cut


def json_ready(value: Any) -> Any:
    """Replace what JSON lacks: NaN and infinities by null, arrays by lists, the rest by text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_ready(item) for item in value]
    if hasattr(value, "tolist"):
        return json_ready(value.tolist())
    return str(value)


class JsonlFile:
    """A JSONL file that stays open: one flushed line per record, synced only on request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and flush it.

        Raises:
            RunError: the disk is full; no partial line is left.
        """
        line = json.dumps(json_ready(record), ensure_ascii=False, allow_nan=False) + "\n"
        file = self._file or self._open()
        start = file.tell()
        try:
            # Unbuffered, so that a failed write leaves nothing that a later close would retry.
            data = memoryview(line.encode("utf-8"))
            while data:
                data = data[file.write(data) :]
        except OSError as error:
            os.ftruncate(file.fileno(), start)
            raise disk_error(error, "write a record", self.path) from error

    def _open(self) -> IO[bytes]:
        try:
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - kept open
        except OSError as error:
            raise disk_error(error, "open a file of the run", self.path) from error
        self._file.seek(0, os.SEEK_END)
        return self._file

    def size(self) -> int:
        """Return the number of bytes in the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def sync(self) -> None:
        """Make the lines so far survive a power cut."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def truncate(self, size: int) -> None:
        """Drop everything after the first ``size`` bytes, and a partial last line."""
        self.close()
        if self.path.exists():
            with open(self.path, "r+b") as file:
                kept = file.read(size)
                file.truncate(kept.rfind(b"\n") + 1)

    def close(self) -> None:
        """Close the file; the next record opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
