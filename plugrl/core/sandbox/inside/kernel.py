"""What Linux takes away from a process for good: capabilities, system calls, and files.

Each function raises OSError where the kernel does not offer it.
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


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(name: str, *arguments: object) -> int:
    """Make a system call; numbers are handed over as the kernel's long ones.

    Raises:
        OSError: the kernel refuses it.
        KeyError: this machine has no table of calls.
    """
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc().syscall(ctypes.c_long(call_numbers()[name]), *longs))


def _prctl(option: int, value: int) -> int:
    return _checked(_libc().prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))))


def die_with_parent(signal: int) -> None:
    """Have the kernel send ``signal`` when the parent ends."""
    _prctl(_DEATH_SIGNAL, signal)


def hide_memory() -> None:
    """Let no other process of this user look into this one, or take its descriptors."""
    _prctl(_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Nothing that is executed later has more rights than this process."""
    _prctl(_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability; root keeps its files and loses its power over limits."""
    header = struct.pack("Ii", 0x20080522, 0)
    syscall("capset", header, bytes(24))


def filter_calls(program: bytes, *, listen: bool) -> int:
    """Have all calls of this process decided by a filter, for good.

    Args:
        program: the filter.
        listen: whether another process answers for what the filter does not decide.

    Returns:
        the descriptor of the listener, 0 where none was asked for.

    Raises:
        OSError: there are no filters; EBUSY: another listener watches this process already.
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
    """Leave of all files those below ``readable`` and, to be changed too, below ``writable``.

    ``devices`` may be read and written.
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
