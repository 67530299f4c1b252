"""Files and folders that are written completely or not at all, and readable disk errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from plugrl.core.errors import PlugrlError, RunError, UsageError
from plugrl.core.plugins.user_code.working_folder import display_path

#: The prefix of files and folders that are still being written.
UNFINISHED = ".tmp-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


def is_disk_full(error: BaseException | None) -> bool:
    """Whether nothing more can be written where ``error`` was raised."""
    return isinstance(error, OSError) and error.errno in _FULL


def disk_error(
    error: OSError, doing: str, path: Path, setting: str = "settings.runs_folder"
) -> PlugrlError:
    """Turn an ``OSError`` into the one line that a command prints; ``setting`` names the folder."""
    path = display_path(path)
    if is_disk_full(error):
        return RunError(f"cannot {doing}: no space left for {path}; free some space and resume")
    if error.errno in _DENIED:
        return UsageError(
            f"cannot {doing}: {path} is not writable ({error.strerror}); "
            f"change its permissions or set {setting}"
        )
    return RunError(f"cannot {doing}: {path}: {error.strerror or error}")


def remove_unfinished(folder: Path) -> None:
    """Delete files that a killed process left half-written. Only for the owner of the run."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(UNFINISHED):
                remove(path)


def remove(path: Path) -> None:
    """Delete a file or a folder, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def temporary_name(path: Path) -> Path:
    """A hidden name beside ``path`` that no other thread or process uses."""
    return path.with_name(f"{UNFINISHED}{path.name}-{os.getpid()}-{threading.get_ident()}")


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write ``text`` to a temporary file beside ``path`` and rename it over ``path``.

    Args:
        path: the file.
        text: the new content.
        mode: permissions, before the user's umask.

    Raises:
        OSError: the file could not be written; the old content is still there.
    """
    temporary = temporary_name(path)
    try:
        with open(temporary, "w", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, like :func:`write_text`."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def sync_folder(path: Path) -> None:
    """Make renames inside ``path`` survive a power cut, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Fill a new folder with ``write`` and put it in the place of ``path``.

    A process that is killed in between leaves the old folder or the new one at ``path``. Only
    between the two renames there is neither; :func:`restore_folder` then brings the old one back.

    Raises:
        OSError: the folder could not be written; the old one is still there.
    """
    restore_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new, old = _hidden(path, "new"), _hidden(path, "old")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        write(new)
        sync_folder(new)
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        restore_folder(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(path: Path) -> None:
    """Bring back the old folder if a kill fell between the renames; otherwise remove it."""
    old = _hidden(path, "old")
    if not old.exists():
        return
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(old, path)


def _hidden(path: Path, which: str) -> Path:
    return path.with_name(f".{which}-{path.name}")


@contextmanager
def atomic_export(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder whose files are moved to ``folder`` at the end, or not at all.

    An empty ``folder`` that exists may be a mounted disk, so it is filled rather than replaced. A
    killed process leaves the hidden folder behind; the next export removes it.
    """
    place = Path(os.path.realpath(folder))
    there = place.is_dir()
    hidden = f"{_export_prefix(place)}{secrets.token_hex(4)}"
    unfinished = (place if there else place.parent) / hidden
    unfinished.mkdir(parents=True)
    lock = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Marks the export as alive: the kernel drops the lock when the process dies. Not every
        # file system has locks.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield unfinished
        if not there:
            os.rename(unfinished, place)
            return
        # config.json is what makes a folder a model folder to other programs, so it comes last.
        for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "config.json"):
            os.rename(path, place / path.name)
    finally:
        os.close(lock)
        shutil.rmtree(unfinished, ignore_errors=True)


def _export_prefix(place: Path) -> str:
    """The prefix of the hidden folders of exports to ``place``."""
    return f"{UNFINISHED}export-{place.name}-"


def remove_stale_exports(folder: Path) -> None:
    """Delete the remains of killed exports to ``folder``; a live export holds a lock."""
    place = Path(os.path.realpath(folder))
    for parent in (place, place.parent):
        for path in parent.glob(f"{glob.escape(_export_prefix(place))}*"):
            try:
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue
            finally:
                os.close(lock)
