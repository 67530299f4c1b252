"""The files of offline runs: which steps they hold, and cutting them back to a checkpoint.

A ``.wandb`` file is a log in the format of LevelDB: blocks of 32 KiB with records of which each has
a checksum (4 bytes), a length (2) and a type (1: whole, 2: first, 3: middle, 4: last part). The
first block begins with 7 bytes of its own. Each record is a protocol buffer.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEADER = 7
_MAGIC = b":W&B"
_WHOLE, _FIRST, _LAST = 1, 2, 4


def cut_sessions(folder: Path, run_id: str, step: int) -> int | None:
    """Drop what offline sessions of a run logged after ``step``; give the last step that is left.

    Sessions that were uploaded stay as they are. ``None``: there are no sessions.
    """
    held: int | None = None
    for path in sorted(folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")):
        last = -1
        for record, start in records(path):
            at = history_step(record)
            if at is not None and at > step and not path.with_suffix(".wandb.synced").exists():
                os.truncate(path, start)
                break
            last = max(last, -1 if at is None else at)
        held = max(last, -1 if held is None else held)
    return held


def wait_until_written(path: Path, size: int, seconds: float = 5.0) -> None:
    """Wait for the record that ends a session, behind the first ``size`` bytes of its file."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = records(path, size - size % _BLOCK)
        if any(record.HasField("exit") for record, _ in found):
            return
        time.sleep(0.02)


def records(path: Path, block: int = 0) -> Iterator[tuple[Any, int]]:
    """Each complete record of a file with its offset; a truncated last one is ignored.

    ``block`` is the offset of the block with which to begin.
    """
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        return
    position, start = block or _HEADER, -1
    parts = b""
    while True:
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
        if position + _HEADER > len(data):
            return
        length, kind = struct.unpack_from("<HB", data, position + 4)
        body = data[position + _HEADER : position + _HEADER + length]
        if kind not in (_WHOLE, _FIRST, 3, _LAST) or len(body) < length:
            return
        if kind in (_WHOLE, _FIRST):
            start, parts = position, b""
        parts += body
        position += _HEADER + length
        if kind in (_WHOLE, _LAST) and start >= 0:
            try:
                yield wandb_internal_pb2.Record.FromString(parts), start
            except Exception:
                return


def history(record: Any) -> dict[str, Any] | None:
    """What one record logged, by name; ``None``: it is no record of history."""
    if record.WhichOneof("record_type") != "history":
        return None
    return {
        "/".join(item.nested_key) or item.key: json.loads(item.value_json)
        for item in record.history.item
    }


def history_step(record: Any) -> int | None:
    """The step of a record of history."""
    values = history(record)
    step = None if values is None else values.get("_step")
    return int(step) if isinstance(step, (int, float)) else None
