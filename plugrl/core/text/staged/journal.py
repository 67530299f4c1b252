"""The journal of finished rollouts: what was sampled and paid for is never sampled again.

It stands beside the checkpoints. Its header says what the rollouts were sampled with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plugrl.core.protocol.nested_array_dict import STRING, NestedArrayDict, is_string
from plugrl.core.run.records.journal import Journal
from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger("plugrl.run")

#: Names an attempt: the turn of its problem, and which attempt at it.
Key = tuple[int, int]


class RolloutJournal(Journal):
    """The finished attempts of one stage.

    Attempts that were sampled with something else, as ``origin`` tells, are set aside.

    Args:
        path: the file; it is made with the first record.
        origin: plain values that say what the attempts are sampled with, such as model versions.
    """

    action = "write down a finished rollout"

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        self._records: dict[Key, dict[str, Any]] = {}
        super().__init__(path, {"origin": dict(origin)})
        if self.damaged:
            logger.warning(
                "%s: line %d is damaged; the attempts of such lines, %d in all, are played again",
                path,
                self.damaged[0],
                len(self.damaged),
            )

    def accept(self, record: dict[str, Any]) -> None:
        """Take the record of an attempt."""
        self._records[record["turn"], record["attempt"]] = record

    def reject(self, found: dict[str, Any] | None, content: bytes) -> None:
        """Set the file aside, unless it is what a kill has left of the first record."""
        if b"\n" not in content:
            return
        why = "was sampled with other models than those of now"
        if found is None or "origin" not in found:
            why = "has a damaged first line, so that its models are not known"
        number = 1
        while self.path.with_suffix(f".{number}.jsonl").exists():
            number += 1
        aside = self.path.with_suffix(f".{number}.jsonl")
        logger.warning("%s %s; it is set aside as %s", self.path.name, why, aside.name)
        os.rename(self.path, aside)

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
        (self._records[key],) = self.append([{"turn": key[0], "attempt": key[1], **record}])
        return self._records[key]


def trajectories_of(record: Mapping[str, Any]) -> list[Trajectory]:
    """The trajectories of a finished attempt."""
    return [Trajectory(**state) for state in record.get("trajectories", ())]


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
