"""Cutting event files back to a checkpoint: TensorBoard itself hides only old scalars.

An event file is a sequence of records: length (8 bytes), its checksum (4), an ``Event`` as protocol
buffer, its checksum (4).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _FOOTER = 12, 4


def cut_events(folder: Path, step: int) -> int:
    """Drop what was logged after ``step``, and a torn end; give the last step left, or -1."""
    held = -1
    for path in sorted(folder.glob("events.out.tfevents.*")):
        end = 0
        for event, end_of_it in events(path):
            if event.HasField("summary"):
                if event.step > step:
                    break
                held = max(held, event.step)
            end = end_of_it
        os.truncate(path, end)
    if 0 <= held < step:
        # Something was lost, and of that step maybe too.
        cut_events(folder, held - 1)
        return held - 1
    return held


def events(path: Path) -> Iterator[tuple[Any, int]]:
    """Each whole event of a file, with the offset at which it ends."""
    from tensorboard.compat.proto import event_pb2

    position = 0
    with path.open("rb") as file:
        while len(header := file.read(_HEADER)) == _HEADER:
            (length,) = struct.unpack_from("<Q", header)
            body = file.read(length + _FOOTER)
            position += _HEADER + len(body)
            if len(body) < length + _FOOTER:
                return
            try:
                event = event_pb2.Event.FromString(body[:length])
            except Exception:
                return
            yield event, position
