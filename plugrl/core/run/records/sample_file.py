"""``SampleFile``: records spread over the steps of a run, in a file of bounded length."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plugrl.core.run.atomic_writes import disk_error, write_text
from plugrl.core.run.records.jsonl_file import JsonlFile, parse_record

#: Bytes of a file of samples; beyond it every second step is dropped.
LIMIT = 2**26


class SampleFile(JsonlFile):
    """A JSONL file that keeps the records of every k-th step, k being what the limit requires.

    A file that has become too long loses every second of its steps, and from then on every second
    of those that come: whatever the length of a run, the steps that are left are the same distance
    apart, and the newest is at most that far back. Records of thinned files have the key
    ``every``. Steps stay whole, so that attempts at one problem stay beside each other.

    Args:
        path: the file.
        limit: its bytes.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        super().__init__(path)
        self._limit = limit
        self._every: int | None = None
        self._step: Any = None
        self._skipped = 0
        self._keeps = True

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record, if its step is one of those that are kept.

        Raises:
            RunError: the disk is full; no partial line is left.
        """
        if self._every is None:
            self._every = _stride(self.path)
            # Whatever was skipped before a resume, the next step is kept.
            self._skipped = self._every
        if record.get("step") != self._step:
            self._step = record.get("step")
            self._skipped += 1
            self._keeps = self._skipped >= self._every
            if self._keeps:
                self._skipped = 0
        if not self._keeps:
            return
        super().append(record if self._every == 1 else {**record, "every": self._every})
        if self.size() > self._limit:
            self._thin()

    def _thin(self) -> None:
        """Drop every second step; of a step that is too long alone, what is yet to come."""
        self.close()
        every = 2 * (self._every or 1)
        kept: list[str] = []
        steps = 0
        for number, (_, lines) in enumerate(itertools.groupby(self._records(), _step_of)):
            steps += 1
            if number % 2 == 0:
                kept += (
                    json.dumps({**record, "every": every}, ensure_ascii=False) + "\n"
                    for record in lines
                )
        if steps == 1:
            self._keeps = False
            return
        try:
            write_text(self.path, "".join(kept))
        except OSError as error:
            raise disk_error(error, "thin out samples", self.path) from error
        self._every = every
        # The step that is going on was the last one; of an even number it is dropped.
        self._keeps = steps % 2 == 1
        self._skipped = 0 if self._keeps else every // 2

    def _records(self) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            for line in file:
                record = parse_record(line)
                if record is not None:
                    yield record

    def drop_after(self, step: int) -> None:
        """Drop the records at the end that belong to later steps.

        A file that was thinned out since a checkpoint is shorter than the checkpoint knows it, so
        that its size alone does not say where the checkpoint's step ends.
        """
        if _stride(self.path) == 1:
            return
        self.close()
        kept = 0
        with open(self.path, "r+b") as file:
            for line in file:
                own = (parse_record(line) or {}).get("step")
                later = not isinstance(own, (int, float)) or own > step
                if later:
                    break
                kept += len(line)
            file.truncate(kept)


def _step_of(record: Mapping[str, Any]) -> Any:
    return record.get("step")


def _stride(path: Path) -> int:
    """Of how many steps a file keeps one, as its first record says."""
    try:
        with open(path, "rb") as file:
            every = (parse_record(file.readline()) or {}).get("every", 1)
    except OSError:
        return 1
    return every if type(every) is int and every > 0 else 1
