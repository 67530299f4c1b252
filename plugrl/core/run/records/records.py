"""What a run writes as it goes: ``status.json``, ``metrics.jsonl`` and ``samples/*.jsonl``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from plugrl.core.errors import ConfigError, PlugrlError, UsageError
from plugrl.core.run.atomic_writes import disk_error, write_json
from plugrl.core.run.records.jsonl_file import JsonlFile, parse_record, read_tail
from plugrl.core.run.records.sample_file import SampleFile

METRICS_FILE = "metrics.jsonl"
#: Files of samples that trainers write in every step or validation; they are thinned out.
_THINNED = frozenset({"rollouts", "dialogues", "validation"})
#: Bytes at the end of a file that certainly contain its last line.
_TAIL = 2**18


def plain_numbers(metrics: Mapping[str, Any]) -> dict[str, float | int]:
    """Turn metric values (numbers, NumPy scalars, one-element tensors) into plain numbers.

    Raises:
        UsageError: a value is not one number.
    """
    plain: dict[str, float | int] = {}
    for name, value in metrics.items():
        kind = type(value)
        if kind is float or kind is int:
            plain[name] = value
            continue
        if kind is bool:
            plain[name] = int(value)
            continue
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError("text")
            plain[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(
                f"metric {name!r} is a {kind.__name__}, but a metric is one number; "
                "use run.sample() for other records"
            ) from None
    return plain


def last_step(path: Path) -> int | None:
    """The step of the last complete line of ``metrics.jsonl``, read from its end."""
    try:
        data, _ = read_tail(path, _TAIL)
    except OSError:
        return None
    for line in reversed(data.split(b"\n")[:-1]):
        step = (parse_record(line) or {}).get("step")
        if isinstance(step, int):
            return step
    return None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read all complete records; a partial last line and a missing file are no errors."""
    if not path.exists():
        return []
    parsed = map(parse_record, path.read_bytes().split(b"\n"))
    return [record for record in parsed if record is not None]


State = Literal["running", "done", "failed", "interrupted", "terminated"]
#: Every state that ``plugrl runs`` shows, with its meaning: those above, which ``status.json`` may
#: contain, and two that other processes infer.
STATES: dict[str, str] = {
    "running": "a process owns it",
    "done": "it ended as configured, or a plugin or the trainer ended it early",
    "failed": "an error ended it; `error` says which",
    "interrupted": "Ctrl-C ended it",
    "terminated": "SIGTERM ended it",
    "killed": "its process ended without writing a state",
    "broken": "its folder cannot be read; `error` says why",
}
KILLED, BROKEN = "killed", "broken"
STATUS_FILE = "status.json"
#: Seconds between two updates of the step number.
_INTERVAL = 5.0


def now() -> str:
    """Return the time in UTC as ISO 8601.

    It is told to the millisecond, because runs are ordered by it: a program may start several
    within a second.
    """
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_status(folder: Path) -> dict[str, Any]:
    """Read ``status.json`` of a run.

    Raises:
        ConfigError: it is missing or damaged.
    """
    path = folder / STATUS_FILE
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    if not isinstance(status, dict):
        raise ConfigError(f"{path} is damaged: it holds no object")
    return status


class Status:
    """The status of a run that this process owns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATUS_FILE
        self._written = 0.0
        self.fields: dict[str, Any] = {
            "state": "running",
            "step": 0,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": now(),
            "resumed": None,
            "ended": None,
            "error": None,
        }

    def resume(self, started: str | None) -> None:
        """Go on from the status on disk, of a run that began at ``started``."""
        self.fields.update(started=started, resumed=now())
        with contextlib.suppress(ConfigError):  # a damaged status ends no run
            before = read_status(self._path.parent)
            self.fields.update({k: before[k] for k in ("headline",) if k in before})

    def step(self, step: int) -> None:
        """Record the last completed step; it is written to disk every few seconds."""
        self.fields["step"] = step
        if time.monotonic() - self._written > _INTERVAL:
            # A status that cannot be written must not end a healthy run.
            with contextlib.suppress(PlugrlError):
                self.write()

    def end(self, state: State, error: str | None = None) -> None:
        """Write the final state. On a full disk the old status stays, which readers recognize."""
        self.fields.update(state=state, ended=now(), error=error)
        with contextlib.suppress(PlugrlError):
            self.write()

    def write(self) -> None:
        """Write ``status.json`` now.

        Raises:
            RunError: the disk is full.
            UsageError: the folder is not writable.
        """
        self._written = time.monotonic()
        try:
            write_json(self._path, dict(self.fields))
        except OSError as error:
            raise disk_error(error, "write the status of the run", self._path) from error


class RunRecords:
    """Writes ``metrics.jsonl`` and ``samples/*.jsonl``, and truncates them to a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._metrics = JsonlFile(folder / METRICS_FILE)
        self._folder = folder / "samples"
        self._samples: dict[str, JsonlFile] = {}

    def metrics(self, step: int, numbers: Mapping[str, float | int]) -> None:
        """Write one line of metrics; names below ``time/`` may differ between equal runs."""
        own = {"step": step, "time/unix": round(time.time(), 3)}
        self._metrics.append(own | dict(numbers) | own)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Write one record to ``samples/<name>.jsonl``."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "samples"
        if safe not in self._samples:
            self._folder.mkdir(exist_ok=True)
            kind = SampleFile if safe in _THINNED else JsonlFile
            self._samples[safe] = kind(self._folder / f"{safe}.jsonl")
        self._samples[safe].append(record)

    def sizes(self) -> dict[str, int]:
        """The current size of each file, for a checkpoint."""
        samples = {path.stem: path.stat().st_size for path in self._folder.glob("*.jsonl")}
        return {"": self._metrics.size(), **samples}

    def truncate(self, sizes: Mapping[str, int], step: int = 0) -> None:
        """Truncate each file to the size that :meth:`sizes` returned at the end of ``step``."""
        self._metrics.truncate(sizes.get("", 0))
        self.close()
        for path in self._folder.glob("*.jsonl"):
            JsonlFile(path).truncate(sizes.get(path.stem, 0))
            if path.stem in _THINNED:
                SampleFile(path).drop_after(step)
        # What is written from now on goes on from what is left.
        self._samples.clear()

    def sync(self) -> None:
        """Make all lines so far survive a power cut."""
        for file in (self._metrics, *self._samples.values()):
            file.sync()

    def close(self) -> None:
        """Close all files."""
        for file in (self._metrics, *self._samples.values()):
            file.close()
