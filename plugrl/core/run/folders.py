"""Folders that are always whole: written beside their place and then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from plugrl.core.run.files import sync_folder


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
