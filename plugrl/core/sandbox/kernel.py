"""What Linux takes away from a process for good: capabilities, system calls, and files.

Standard library only, and no other module of plugrl: the launcher of a box loads this file.
Each function raises OSError where the kernel does not offer it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable

_EPERM, _ENOSYS = 1, 38
_NO_NEW_PRIVS, _SECCOMP, _DEATH_SIGNAL = 38, 22, 1
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_CLONE_THREAD = 0x00010000
_CAPSET = {"x86_64": 126, "aarch64": 91}
#: Machine: audit number, clone, clone3, and the calls that are refused.
_CALLS: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        56,
        435,
        {
            "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "socket": 41, "ptrace": 101,
            "process_vm_readv": 310, "process_vm_writev": 311, "kill": 62, "tkill": 200,
            "tgkill": 234, "pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438,
            "mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "pivot_root": 155,
            "chroot": 161, "io_uring_setup": 425, "bpf": 321, "perf_event_open": 298,
            "keyctl": 250, "add_key": 248, "request_key": 249, "userfaultfd": 323,
            "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
            "reboot": 169, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240,
            "setpriority": 141,
        },
    ),
    "aarch64": (
        0xC00000B7,
        220,
        435,
        {
            "execve": 221, "execveat": 281, "socket": 198, "ptrace": 117,
            "process_vm_readv": 270, "process_vm_writev": 271, "kill": 129, "tkill": 130,
            "tgkill": 131, "pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438,
            "mount": 40, "umount2": 39, "unshare": 97, "setns": 268, "pivot_root": 41,
            "chroot": 51, "io_uring_setup": 425, "bpf": 280, "perf_event_open": 241,
            "keyctl": 219, "add_key": 217, "request_key": 218, "userfaultfd": 282,
            "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104,
            "reboot": 142, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180,
            "setpriority": 140,
        },
    ),
}  # fmt: skip


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _syscall(number: int, *arguments: object) -> int:
    return _checked(_libc().syscall(ctypes.c_long(number), *arguments))


def _prctl(option: int, *arguments: object) -> int:
    filled = [*arguments, 0, 0, 0, 0][:4]
    longs = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in filled]
    return _checked(_libc().prctl(option, *longs))


def die_with_parent(signal: int) -> None:
    """Have the kernel send ``signal`` when the parent ends."""
    _prctl(_DEATH_SIGNAL, signal)


def no_new_privileges() -> None:
    """Nothing that is executed later has more rights than this process."""
    _prctl(_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability; root keeps its files and loses its power over limits."""
    header = struct.pack("Ii", 0x20080522, 0)
    _syscall(_CAPSET[platform.machine()], header, bytes(24))


def forbid_calls() -> None:
    """Refuse new processes, programs, sockets, signals and what administers a machine.

    Threads stay possible. The filter holds for the life of the process.
    """
    audit, clone, clone3, refused = _CALLS[platform.machine()]
    load, equal, greater, test, give = 0x20, 0x15, 0x35, 0x45, 0x06
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, audit),
        (give, 0, 0, _KILL),
        (load, 0, 0, 0),  # the number of the call
        (greater, 0, 1, 0x40000000),  # x32, which counts otherwise
        (give, 0, 0, _KILL),
        (equal, 0, 1, clone3),  # its flags cannot be read here; libc falls back to clone
        (give, 0, 0, _ERRNO | _ENOSYS),
    ]
    for number in refused.values():
        program += [(equal, 0, 1, number), (give, 0, 0, _ERRNO | _EPERM)]
    program += [
        (equal, 0, 3, clone),
        (load, 0, 0, 16),  # the first argument: the flags
        (test, 1, 0, _CLONE_THREAD),
        (give, 0, 0, _ERRNO | _EPERM),
        (give, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    no_new_privileges()
    _prctl(_SECCOMP, 2, ctypes.c_char_p(header))


#: Rights over files: 1 execute, 4 read a file, 8 read a folder; the others change something.
_READ = 1 | 4 | 8
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_FILE = 1 | 2 | 4 | (1 << 14) | (1 << 15)


def confine_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Leave of all files those below ``readable`` and, to be changed too, below ``writable``."""
    no_new_privileges()
    version = _syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    rights = _RIGHTS.get(version, 0xFFFF)
    # From version 4 on TCP, from version 6 on abstract sockets and signals can be denied.
    attributes = struct.pack("QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _syscall(444, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    for path, wanted in [*((p, _READ) for p in readable), *((p, rights) for p in writable)]:
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        own = rights & wanted if os.path.isdir(path) else rights & wanted & _FILE
        try:
            _syscall(445, ruleset, ctypes.c_int(1), struct.pack("=Qi", own, found), 0)
        finally:
            os.close(found)
    try:
        _syscall(446, ruleset, ctypes.c_uint(0))
    finally:
        os.close(ruleset)
