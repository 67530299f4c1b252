"""Gives up rights of this process irrevocably: capabilities, system calls, and files.

Each function raises OSError if the kernel does not support it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from functools import cache

from plugrl.core.sandbox.inside.system_calls import call_numbers

_NO_NEW_PRIVS, _DEATH_SIGNAL, _DUMPABLE = 38, 1, 4
_SET_FILTER, _LISTENER = 1, 8


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(name: str, *arguments: object) -> int:
    """Make a system call; integers are passed as ``long``.

    Raises:
        OSError: the kernel refuses it.
        KeyError: there is no table of calls for this architecture.
    """
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check_result(_libc().syscall(ctypes.c_long(call_numbers()[name]), *longs))


def _prctl(option: int, value: int) -> int:
    return _check_result(_libc().prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))))


def die_with_parent(signal: int) -> None:
    """Have the kernel send ``signal`` when the parent ends."""
    _prctl(_DEATH_SIGNAL, signal)


def hide_memory() -> None:
    """Prevent other processes of this user from tracing this one or taking its descriptors."""
    _prctl(_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Prevent programs that are executed later from gaining rights, as by setuid."""
    _prctl(_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability; root keeps its files and can no longer raise limits."""
    header = struct.pack("Ii", 0x20080522, 0)
    syscall("capset", header, bytes(24))


def filter_calls(program: bytes, *, listen: bool) -> int:
    """Install a seccomp filter for this process, irrevocably.

    Args:
        program: the filter as BPF bytecode.
        listen: whether another process decides what the filter leaves open.

    Returns:
        the descriptor of the listener; 0 without one.

    Raises:
        OSError: filters are not supported; EBUSY: the process has a listener already.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    no_new_privileges()
    return syscall("seccomp", _SET_FILTER, _LISTENER if listen else 0, ctypes.c_char_p(header))


#: Rights over files: 1 execute, 2 write to a file, 4 read one, 8 read a folder; the others change
#: something.
_READ, _WRITE = 1 | 4 | 8, 2
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_FILE = 1 | 2 | 4 | (1 << 14) | (1 << 15)


def confine_files(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Allow only reading below ``readable``, and reading and writing below ``writable``.

    ``devices`` may be read and written, too.
    """
    no_new_privileges()
    version = syscall("landlock_create_ruleset", None, 0, 1)
    rights = _RIGHTS.get(version, 0xFFFF)
    # From version 4 on TCP, from version 6 on abstract sockets and signals can be denied.
    attributes = struct.pack("QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = syscall("landlock_create_ruleset", attributes, size, 0)
    given = {**dict.fromkeys(readable, _READ), **dict.fromkeys(devices, _READ | _WRITE)}
    for path, wanted in (given | dict.fromkeys(writable, rights)).items():
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        own = rights & wanted if os.path.isdir(path) else rights & wanted & _FILE
        try:
            rule = struct.pack("=Qi", own, found)
            syscall("landlock_add_rule", ruleset, 1, rule, 0)
        finally:
            os.close(found)
    try:
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
