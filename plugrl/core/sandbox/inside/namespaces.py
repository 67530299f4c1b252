"""Linux namespaces: a view of the machine that contains little but Python.

Each function raises OSError if the kernel, or the container, does not allow it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from plugrl.core.sandbox.inside.kernel import syscall

_MOUNT, _USER, _IPC, _PROCESS, _NETWORK = 0x20000, 0x10000000, 0x8000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
_DETACH, _AT_RECURSIVE, _AT_CWD = 2, 0x8000, -100
_READ_ONLY = 1
#: The user that a program runs as inside its namespace.
_NOBODY = 65534
#: Folders over which the new root may be built: one of them is everywhere.
_PLACES = ("/tmp", "/var/tmp", "/mnt", "/run", "/usr")


def mount(kind: str | None, source: str, target: str, flags: int = 0, options: str = "") -> None:
    """Mount ``source`` at ``target``."""
    words = [None if w is None else os.fsencode(w) for w in (source, target, kind)]
    syscall("mount", *words, flags, os.fsencode(options) if options else None)


def unshare() -> None:
    """Enter new user, mount, network and IPC namespaces; children get a new PID namespace.

    Network and IPC namespaces are optional, because the filter denies sockets and messages as well.
    A process that may mount does without a user namespace if it must.
    """
    user, group = os.geteuid(), os.getegid()
    needed = _MOUNT | _PROCESS
    attempts = [needed | _USER | _IPC | _NETWORK, needed | _USER]
    attempts += [needed | _IPC | _NETWORK, needed] if user == 0 else []
    for number, flags in enumerate(attempts):
        try:
            syscall("unshare", flags)
            break
        except OSError:
            if number == len(attempts) - 1:
                raise
    if not flags & _USER:
        return
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{_NOBODY} {user} 1")
    _write("/proc/self/gid_map", f"{_NOBODY} {group} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def private_mounts() -> None:
    """Enter a new mount namespace; its mounts vanish with its last process."""
    syscall("unshare", _MOUNT)


def new_root(readable: Iterable[str], boxes: Iterable[str]) -> None:
    """Change to a new root that contains ``readable``, read-only, and empty ``boxes``.

    Args:
        readable: files and folders; missing ones are left out.
        boxes: absolute paths of empty folders to create.
    """
    syscall("mount", b"none", b"/", None, _REC | _PRIVATE, None)
    links, found = _open_readable(readable)
    base = next(place for place in _PLACES if os.path.isdir(place))
    mount("tmpfs", "plugrl", base, _NOSUID | _NODEV, "mode=755,size=1m,nr_inodes=4096")
    for path, target in links.items():
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        os.symlink(target, base + path)
    for path, descriptor in found.items():
        _bind_mount(descriptor, base + path)
        os.close(descriptor)
    for box in boxes:
        os.makedirs(base + box)
    os.chdir(base)
    syscall("pivot_root", b".", b".")
    syscall("umount2", b".", _DETACH)
    os.chdir("/")
    _make_read_only("/", recursive=False)


def _open_readable(readable: Iterable[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Symbolic links with their targets, and descriptors of all other paths but nested ones."""
    links: dict[str, str] = {}
    found: dict[str, int] = {}
    for path in sorted({os.path.normpath(path) for path in readable}, key=len):
        if any(path.startswith(f"{other}/") for other in found):
            continue
        if os.path.islink(path):
            links[path] = os.readlink(path)
        elif os.path.exists(path):
            found[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return links, found


def _bind_mount(descriptor: int, target: str) -> None:
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(None, source, target, _BIND | _REC)
    _make_read_only(target, recursive=True)


def _make_read_only(path: str, *, recursive: bool) -> None:
    attributes = struct.pack("QQQQ", _READ_ONLY | _NOSUID, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    syscall("mount_setattr", _AT_CWD, os.fsencode(path), flags, ctypes.c_char_p(attributes), 32)


def limited_folder(path: str, size: int, files: int) -> None:
    """Mount a folder in memory whose size and number of files the kernel limits.

    Args:
        path: the mount point.
        size: bytes of all files together.
        files: number of files and folders, without the folder itself.
    """
    options = f"mode=700,size={size},nr_inodes={files + 1}"
    mount("tmpfs", "box", path, _NOSUID | _NODEV, options)
