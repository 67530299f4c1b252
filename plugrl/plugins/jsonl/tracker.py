"""``JsonlTracker``: one JSONL file that collects several runs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.run.atomic_writes import disk_error
from plugrl.core.run.records.jsonl_file import json_ready
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker


class JsonlTracker(Tracker):
    """Appends to a JSONL file that several runs, also at the same time, may share.

    Every line has ``run``, ``event`` (start, metrics, sample, end) and ``step``. The run folder
    always has its own ``metrics.jsonl`` and ``samples/``, also without this tracker.
    """

    remedy: ClassVar[str] = "make room, or change trackers: `path` of jsonl"

    @dataclass
    class Config:
        """Where the lines go, and which."""

        path: str | None = described(
            None, "file to append to; null: metrics.jsonl of the run folder and nothing else"
        )
        samples: bool = described(True, "whether samples are written")
        config: bool = described(True, "whether the configuration is written")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        path = self.config.path
        self._path = Path(path).absolute() if path else None
        self._run = ""
        self._step = 0

    def start(self, run: TrackedRun) -> int | None:
        """Drop what the run wrote after its checkpoint; write the configuration once."""
        self._run, self._step = run.id, max(run.step, 0)
        if self._path is None:
            return None
        held = self._cut(self._path, run.step) if run.resumed else None
        if held is None:
            config = {"config": run.config} if self.config.config else {}
            self._write("start", max(run.step, 0), {"experiment": run.experiment, **config})
        return -1 if run.resumed and held is None else held

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Append one line with run, step and metrics."""
        self._step = step
        self._write("metrics", step, metrics)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Append one line with the record."""
        if self.config.samples:
            rest = {key: value for key, value in record.items() if key != "step"}
            step = int(record.get("step", self._step))
            self._write("sample", step, {"sample": name, "record": rest})

    def finish(self, outcome: str) -> None:
        """Append how the run ended."""
        self._write("end", self._step, {"outcome": outcome})

    def _write(self, event: str, step: int, fields: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        own = {"run": self._run, "event": event, "step": step}
        record = own | dict(fields) | own
        line = json.dumps(json_ready(record), ensure_ascii=False, allow_nan=False) + "\n"
        with _locked(self._path) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                _write_all(file, line.encode("utf-8"))
            except OSError as error:
                file.truncate(start)
                raise disk_error(error, "write a record", self._path) from error

    def _cut(self, path: Path, step: int) -> int | None:
        """Drop the lines of this run after ``step``; give the last step that is left."""
        if not path.exists():
            return None
        held: int | None = None
        with _locked(path) as file:
            lines = file.read().splitlines(keepends=True)
            kept = []
            for line in lines:
                record = _read(line)
                own, at = record.get("run") == self._run, record.get("step", 0)
                event = record.get("event")
                dropped = own and (event == "end" or (event != "start" and at > step))
                if own and not dropped:
                    held = max(-1 if held is None else held, at if event == "metrics" else -1)
                if not dropped and line.endswith(b"\n"):
                    kept.append(line)
            pairs = zip(lines, kept, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            # In place, because other runs may hold the file open.
            file.seek(sum(map(len, lines[:same])))
            _write_all(file, b"".join(kept[same:]))
            file.truncate()
        if held is not None and 0 <= held < step:
            # Something was lost, and of that step maybe too.
            self._cut(path, held - 1)
            return held - 1
        return held


def _write_all(file: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise disk_error(error, "open the file of the tracker jsonl", path) from error
    with open(descriptor, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _read(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
