"""Small files that are written completely or not at all, and readable disk errors."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
from collections.abc import Mapping
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


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return a configuration as YAML, in its own order."""
    from plugrl.core.config.sources import writer

    return writer.dump_yaml(tree)


def sync_folder(path: Path) -> None:
    """Make renames inside ``path`` survive a power cut, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
