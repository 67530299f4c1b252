"""Measures and removes folders that a program wrote to, which may be arbitrarily nasty."""

from __future__ import annotations

import os
import secrets
import stat

_LOOK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HOLD = _LOOK | getattr(os, "O_PATH", 0)


def measure(folder: str, most: int) -> tuple[int, int]:
    """The number of files and folders in a folder, and their total size in bytes.

    Stops soon after ``most`` entries, and uses descriptors instead of paths, which may be too long.
    """
    count = size = 0
    waiting = [os.open(folder, _LOOK)]
    while waiting:
        here = waiting.pop()
        try:
            for entry in os.scandir(here):
                found = _stat(entry.name, here)
                if found is None:
                    continue
                if count > most:
                    break
                count, size = count + 1, size + found.st_size
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(_open_folder(entry.name, here))
        except OSError:
            # It was removed in the meantime.
            continue
        finally:
            os.close(here)
    return count, size


def _stat(name: str, here: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False)
    except OSError:
        return None


def _open_folder(name: str, here: int) -> int:
    try:
        return os.open(name, _LOOK, dir_fd=here)
    except PermissionError:
        # Not by path: a running program could put a link in its place.
        held = os.open(name, _HOLD, dir_fd=here)
        try:
            os.chmod(f"/proc/self/fd/{held}", 0o700)
            return os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(held)


def remove(folder: str) -> None:
    """Remove a folder of any depth: nested folders are moved up until there are none left."""
    here = os.open(folder, _LOOK)
    try:
        while names := os.listdir(here):
            for name in names:
                found = _stat(name, here)
                if found is None:
                    continue
                if not stat.S_ISDIR(found.st_mode):
                    os.unlink(name, dir_fd=here)
                    continue
                inner = _open_folder(name, here)
                try:
                    os.fchmod(inner, 0o700)
                    for each in os.listdir(inner):
                        _move_up(each, inner, secrets.token_hex(16), here)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(folder)


def _move_up(name: str, inner: int, other: str, here: int) -> None:
    """Move a folder up one level, or remove a file."""
    found = _stat(name, inner)
    if found is not None and stat.S_ISDIR(found.st_mode):
        # A folder without rights for its owner cannot be moved.
        os.chmod(name, 0o700, dir_fd=inner)
        os.rename(name, other, src_dir_fd=inner, dst_dir_fd=here)
    elif found is not None:
        os.unlink(name, dir_fd=inner)
