"""``status.json``: the state of a run, for people and for ``plugrl runs``."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from plugrl.core.errors import ConfigError
from plugrl.core.run.atomic_files import write_json

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
    """Return the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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

    def step(self, step: int) -> None:
        """Record the last completed step; it is written to disk every few seconds."""
        self.fields["step"] = step
        if time.monotonic() - self._written > _INTERVAL:
            # A status that cannot be written must not end a healthy run.
            with contextlib.suppress(OSError):
                self.write()

    def end(self, state: State, error: str | None = None) -> None:
        """Write the final state. On a full disk the old status stays, which readers recognize."""
        self.fields.update(state=state, ended=now(), error=error)
        with contextlib.suppress(OSError):
            self.write()

    def write(self) -> None:
        """Write ``status.json`` now."""
        self._written = time.monotonic()
        write_json(self._path, dict(self.fields))
