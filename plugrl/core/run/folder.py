"""Run folders: created atomically, found by name, and summarized without trusting their files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plugrl.core.errors import UsageError
from plugrl.core.run.atomic_writes import UNFINISHED, disk_error
from plugrl.core.run.lock import LOCK_FILE as RUN_LOCK
from plugrl.core.run.lock import RunLock, is_locked
from plugrl.core.run.records.records import (
    BROKEN,
    KILLED,
    METRICS_FILE,
    STATES,
    STATUS_FILE,
    last_step,
)

CONFIG_FILE = "config.yaml"
LOCK_FILE = "plugins.lock.json"
CHECKPOINTS = "checkpoints"
#: Which trial of a sweep a run is.
SWEEP_FILE = "sweep.json"
#: Seconds for which a folder without a lock may belong to a process that is just starting.
_YOUNG = 60.0


def folder_name(experiment: str) -> str:
    """The folder name of an experiment: characters that file systems may reject become ``_``."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", experiment).lstrip(".")[:100] or "experiment"


def create(root: Path, experiment: str, fill: Callable[[Path], None]) -> tuple[Path, RunLock]:
    """Create ``root/experiment/<time>-<id>``, filled and locked, in one rename.

    Args:
        root: the folder of all runs.
        experiment: its name; see :func:`folder_name`.
        fill: writes the files of the run into the folder it is given.

    Raises:
        UsageError: the folder is not writable.
        RunError: the disk is full. No folder stays behind.
    """
    parent = root / folder_name(experiment)
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    temporary = parent / f"{UNFINISHED}{name}"
    lock: RunLock | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_killed_starts(parent)
        temporary.mkdir()
        # First: the lock tells other processes that this folder is being filled.
        lock = RunLock(temporary)
        fill(temporary)
        os.rename(temporary, parent / name)
    except BaseException as error:
        if lock is not None:
            lock.release()
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, "make the run folder", parent) from error
        raise
    return parent / name, lock


def _remove_killed_starts(parent: Path) -> None:
    """Delete the folders of runs that were killed before the final rename."""
    for path in parent.glob(f"{UNFINISHED}*"):
        try:
            young = time.time() - path.stat().st_mtime < _YOUNG
        except OSError:
            continue
        # A folder exists for a moment before its lock does.
        if is_locked(path) or (young and not (path / RUN_LOCK).exists()):
            continue
        with contextlib.suppress(OSError):
            # The folder for checkpoints elsewhere, which is still empty.
            os.rmdir(os.readlink(path / CHECKPOINTS))
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run folder as other processes see it."""

    id: str
    experiment: str
    state: str
    step: int | None
    started: str | None
    ended: str | None
    error: str | None
    path: str
    sweep: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return asdict(self)


def summarize(folder: Path) -> RunSummary:
    """Summarize a run folder; never raises.

    ``state`` is that of ``status.json``; ``killed`` if that says running but no process owns the
    run; ``broken`` if it cannot be read.
    """
    status: dict[str, Any] = {}
    error: str | None = None
    try:
        read = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
        if not isinstance(read, dict):
            raise ValueError("not an object")
        status = read
        state = str(status["state"])
        if state not in STATES:
            raise ValueError(f"there is no state {state!r}")
    except (OSError, ValueError, KeyError) as problem:
        state, error = BROKEN, f"{STATUS_FILE} cannot be read: {_reason(problem)}"
    if state == "running" and not is_locked(folder):
        state = KILLED
        if (host := status.get("host")) not in (None, socket.gethostname()):
            error = f"it ran on {host}, and locks of other machines cannot be seen everywhere"
    step = status.get("step")
    if state in ("running", KILLED):
        # status.json is written every few seconds only; the metrics know the last step.
        found = last_step(folder / METRICS_FILE)
        step = step if found is None else found
    return RunSummary(
        id=folder.name,
        experiment=folder.parent.name,
        state=state,
        step=step if isinstance(step, int) else None,
        started=_text(status.get("started")),
        ended=_text(status.get("ended")),
        error=error or _text(status.get("error")),
        path=str(folder),
        sweep=_sweep(folder),
    )


def _sweep(folder: Path) -> str | None:
    """Which trial of a sweep a run is, and whether its best one; None: it is of none."""
    try:
        found = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
        return f"{found['sweep']} {found['trial']}{' best' if found['best'] else ''}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or type(problem).__name__
    return str(problem)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def find_all(root: Path) -> list[RunSummary]:
    """Summarize every run below ``root``, the newest last; unreadable folders are left out."""
    found = []
    for experiment in _folders(root):
        for folder in _folders(experiment):
            if _is_run(folder):
                found.append(summarize(folder))
    return sorted(found, key=lambda run: (run.started or "", run.id, run.path))


def _folders(parent: Path) -> list[Path]:
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    return [entry for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _is_run(folder: Path) -> bool:
    try:
        return any((folder / name).exists() for name in (STATUS_FILE, CONFIG_FILE, METRICS_FILE))
    except OSError:
        # It may be a run, so show it as broken rather than hide it.
        return True


def find(reference: str, root: Path) -> Path:
    """Find a run by path, id, beginning of an id, experiment name (its newest run) or ``latest``.

    Raises:
        UsageError: no run, or more than one, matches.
    """
    path = Path(reference)
    if _is_folder(path) and _is_run(path):
        return path
    runs = find_all(root)
    exact = [run for run in runs if run.id == reference]
    if not exact and reference == "latest":
        exact = runs[-1:]
    if not exact:
        exact = [run for run in runs if run.experiment == folder_name(reference)][-1:]
    fitting = exact or [run for run in runs if run.id.startswith(reference)]
    if len(fitting) == 1:
        return Path(fitting[0].path)
    if fitting:
        names = ", ".join(run.id for run in fitting[:5])
        raise UsageError(
            f"{len(fitting)} runs begin with {reference!r}: {names}; write more characters"
        )
    names_of_runs = [name for run in runs for name in (run.id, run.experiment) if name]
    raise UsageError(
        f"no run {reference!r} in {root}{_hint(reference, names_of_runs)}; "
        "`plugrl runs list` shows what there is"
    )


def _hint(reference: str, names: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(reference, names, n=1)
    return f" (close: {close[0]})" if close else ""
