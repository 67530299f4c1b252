"""The journal of finished rollouts: what was sampled and paid for is never sampled again.

A journal is a file of JSON lines beside the checkpoints. Its first line says what the rollouts
were sampled with; each other line is one finished attempt, on the disk before the next is counted.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from plugrl.core.protocol.nested_array_dict import STRING, NestedArrayDict, is_string
from plugrl.core.run.files import disk_error, sync_folder
from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger("plugrl.run")

#: Names an attempt: the turn of its problem, and which attempt at it.
Key = tuple[int, int]


class Journal:
    """The finished attempts of one stage.

    What a killed process left half-written at the end is cut off. Attempts that were sampled with
    something else, as ``origin`` tells, are set aside.

    Args:
        path: the file; it is made with the first record.
        origin: plain values that say what the attempts are sampled with, such as model versions.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        self._path = path
        self._origin = json.loads(json.dumps(dict(origin)))
        self._records: dict[Key, dict[str, Any]] = {}
        self._size = 0
        self._read()

    def _read(self) -> None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        lines, damaged = _whole_lines(content)
        if not lines:
            # Without a whole line it is what a kill has left of the first record.
            if b"\n" in content:
                self._set_aside("has a damaged first line, so that its models are not known")
            return
        if lines[0][1].get("origin") != self._origin:
            self._set_aside("was sampled with other models than those of now")
            return
        if damaged:
            logger.warning(
                "%s: line %d is damaged; the attempts of such lines, %d in all, are played again",
                self._path,
                damaged[0],
                len(damaged),
            )
        self._size = lines[-1][0]
        for _, record in lines[1:]:
            self._records[(record["turn"], record["attempt"])] = record

    def _set_aside(self, why: str) -> None:
        number = 1
        while self._path.with_suffix(f".{number}.jsonl").exists():
            number += 1
        aside = self._path.with_suffix(f".{number}.jsonl")
        logger.warning("%s %s; it is set aside as %s", self._path.name, why, aside.name)
        os.rename(self._path, aside)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> dict[str, Any] | None:
        """The record of an attempt; None: it has not finished."""
        return self._records.get(key)

    def trajectories(self) -> list[Trajectory]:
        """Those of all attempts, in the order of problems; none where nobody listened to them."""
        return [
            each for key in sorted(self._records) for each in trajectories_of(self._records[key])
        ]

    def add(self, key: Key, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write down a finished attempt; it is on the disk when this returns.

        Returns:
            The record as a resumed run reads it.

        Raises:
            RunError, UsageError: the file cannot be written.
        """
        line = json.dumps({"turn": key[0], "attempt": key[1], **record}) + "\n"
        if not self._size:
            line = json.dumps({"origin": self._origin}) + "\n" + line
        data = line.encode("ascii")
        try:
            new = not self._path.exists()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "r+b" if not new else "xb") as file:
                # Over what a killed process left of a line.
                file.truncate(self._size)
                file.seek(self._size)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self._path.parent)
        except OSError as error:
            raise disk_error(error, "write down a finished rollout", self._path) from error
        self._size += len(data)
        self._records[key] = json.loads(data.splitlines()[-1])
        return self._records[key]


def trajectories_of(record: Mapping[str, Any]) -> list[Trajectory]:
    """The trajectories of a finished attempt."""
    return [Trajectory(**state) for state in record.get("trajectories", ())]


def _whole_lines(content: bytes) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
    """The lines that can be read, each with the place where it ends, and the numbers of others.

    What comes after the last line that can be read is what a kill has left, and no damage.
    """
    lines: list[tuple[int, dict[str, Any]]] = []
    damaged: list[int] = []
    end = found = 0
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        end += len(line)
        record = None
        if line.endswith(b"\n"):
            with suppress(ValueError):
                record = json.loads(line)
        wanted = {"turn", "attempt"} if number > 1 else {"origin"}
        if isinstance(record, dict) and wanted <= record.keys():
            lines.append((end, record))
            found = number
        elif number == 1:
            # What the attempts were sampled with is not known.
            return [], []
        else:
            damaged.append(number)
    return lines, [number for number in damaged if number < found]


def as_plain(tree: NestedArrayDict) -> dict[str, Any]:
    """A nested dictionary as plain values, for JSON."""
    entries: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, NestedArrayDict):
            entries[key] = as_plain(value)
        else:
            dtype = "str" if is_string(value) else value.dtype.str
            entries[key] = {"dtype": dtype, "shape": list(value.shape), "values": _flat(value)}
    return {"batch_size": list(tree.batch_size), "entries": entries}


def _flat(array: Any) -> list[Any]:
    return [None if item is None else item for item in np.ravel(array).tolist()]


def from_plain(document: Mapping[str, Any]) -> NestedArrayDict:
    """The nested dictionary that :func:`as_plain` took apart."""
    entries: dict[str, Any] = {}
    for key, value in document["entries"].items():
        if "entries" in value:
            entries[key] = from_plain(value)
            continue
        if value["dtype"] == "str":
            array = np.array(value["values"], dtype=object).astype(STRING)
        else:
            array = np.array(value["values"], dtype=np.dtype(value["dtype"]))
        entries[key] = array.reshape(value["shape"])
    return NestedArrayDict(entries, document["batch_size"])
