"""Folders that are always whole: written beside their place and then renamed."""

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
    """Let ``write`` fill a new folder and put it in the place of ``path``.

    Whoever is killed in between leaves the old folder or the new one, at ``path`` or, for the
    moment between two renames, at a hidden name from which :func:`restore_folder` takes it back.

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
    """Take back the old folder where a kill fell between the renames, and else remove it."""
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
    """A hidden folder whose files appear in ``folder`` at the end, all or none.

    An empty folder that is there may be a mounted disk: it stays, and is filled. Only a process
    that is killed leaves the hidden folder behind, and the next export removes it.
    """
    place = Path(os.path.realpath(folder))
    there = place.is_dir()
    hidden = f"{_export_prefix(place)}{secrets.token_hex(4)}"
    unfinished = (place if there else place.parent) / hidden
    unfinished.mkdir(parents=True)
    lock = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The kernel drops it when the process dies; not every file system has locks.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield unfinished
        if not there:
            os.rename(unfinished, place)
            return
        # By config.json others know a model folder, so it comes last.
        for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "config.json"):
            os.rename(path, place / path.name)
    finally:
        os.close(lock)
        shutil.rmtree(unfinished, ignore_errors=True)


def _export_prefix(place: Path) -> str:
    """How the hidden folders of exports to ``place`` begin."""
    return f"{UNFINISHED}export-{place.name}-"


def remove_stale_exports(folder: Path) -> None:
    """Delete what exports to ``folder`` that were killed left; those that go on hold a lock."""
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
