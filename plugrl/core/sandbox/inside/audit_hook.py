"""Denies in the interpreter what the kernel cannot; native code can bypass it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

#: Audit events of the interpreter that no program needs.
_REFUSED = (
    "socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.startfile", "subprocess.Popen",
    "os.kill", "os.killpg", "pty.spawn", "ctypes.dlopen", "ctypes.dlsym", "os.chdir", "os.chown",
    "os.chmod", "os.utime", "os.setxattr", "os.removexattr", "os.link", "os.symlink",
    "os.truncate", "resource.prlimit", "signal.pthread_kill",
)  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir")
_LOOKS = ("os.listdir", "os.scandir")


def refuse(readable: Iterable[str], writable: str) -> None:
    """Deny processes, sockets, and all files but those below ``readable`` and ``writable``."""
    sys.addaudithook(_hook(tuple(os.path.realpath(path) for path in readable), writable))


def _hook(readable: tuple[str, ...], inside: str) -> Callable[[str, tuple[Any, ...]], None]:
    refused, looks = frozenset(_REFUSED), frozenset(_LOOKS)
    touched = frozenset(_LOOKS + _CHANGES)
    real, decode = os.path.realpath, os.fsdecode
    changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def below(path: Any, folders: tuple[str, ...]) -> bool:
        found = real(decode(path))
        return any(found == f or found.startswith(f.rstrip("/") + "/") for f in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in refused:
            raise PermissionError(f"{event} is not allowed in the box")
        if event == "open" and not isinstance(arguments[0], int):
            change = bool(arguments[2] & changes)
            if not below(arguments[0], (inside,) if change else (inside, *readable)):
                raise PermissionError(f"{arguments[0]!r} is outside of the box")
        elif event in touched:
            paths = [a for a in arguments[:2] if isinstance(a, (str, bytes, os.PathLike))]
            allowed = (inside, *readable) if event in looks else (inside,)
            if not all(below(path, allowed) for path in paths):
                raise PermissionError(f"{event} outside of the box is not allowed")

    return hook
