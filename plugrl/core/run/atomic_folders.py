"""Folders that are replaced atomically: written under a hidden name, then renamed."""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plugrl.core.run.atomic_files import UNFINISHED, sync_folder


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
