"""The filter of system calls, decided by a machine of this file: also for other architectures."""

import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import hostile
import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.sandbox.inside import system_calls
from plugrl.core.sandboxes import make_sandbox

#: Numbers from the tables of Linux: arch/x86/entry/syscalls/syscall_64.tbl and
#: include/uapi/asm-generic/unistd.h.
NUMBERS = {
    "x86_64": {
        "read": 0, "openat": 257, "clone": 56, "clone3": 435, "kill": 62, "tgkill": 234,
        "execve": 59, "socket": 41, "prlimit64": 302, "fcntl": 72, "ioctl": 16, "prctl": 157,
        "mkdirat": 258, "fchmodat": 268, "sendto": 44, "sendmsg": 46, "socketpair": 53,
        "ptrace": 101, "rt_sigqueueinfo": 129, "futex": 202, "exit_group": 231, "getrandom": 318,
        "setxattr": 188, "utimensat": 280, "io_uring_setup": 425, "memfd_create": 319,
        "fallocate": 285,
    },
    "aarch64": {
        "read": 63, "openat": 56, "clone": 220, "clone3": 435, "kill": 129, "tgkill": 131,
        "execve": 221, "socket": 198, "prlimit64": 261, "fcntl": 25, "ioctl": 29, "prctl": 167,
        "mkdirat": 34, "fchmodat": 53, "sendto": 206, "sendmsg": 211, "socketpair": 199,
        "ptrace": 117, "rt_sigqueueinfo": 138, "futex": 98, "exit_group": 94, "getrandom": 278,
        "setxattr": 5, "utimensat": 88, "io_uring_setup": 425, "memfd_create": 279,
        "fallocate": 47,
    },
}  # fmt: skip
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, REFUSE, ASK, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x7FC00000, 0x80000000
LACKS = 0x00050000 | errno.ENOSYS
THREAD, NEW_USER = 0x10000, 0x10000000
CREATE, TRUNCATE = 0o100, 0o1000


@pytest.fixture(params=list(NUMBERS))
def machine(request, monkeypatch):
    if sys.platform != "linux":
        pytest.skip("the calls are Linux's")
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    system_calls.call_numbers.cache_clear()
    yield request.param
    system_calls.call_numbers.cache_clear()


def decided(program, machine, number, arguments=()):
    """What a classic BPF program answers: the instructions that the filter has."""
    data = struct.pack("=iIQ6Q", number, AUDIT[machine], 0, *[*arguments, *[0] * 6][:6])
    steps = list(struct.iter_unpack("HBBI", program))
    place = held = 0
    while True:
        code, yes, no, value = steps[place]
        place += 1
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            held &= value
        elif code == 0x06:
            return value
        else:
            is_true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            place += yes if is_true else no


CASES = [
    ("read", (), ALLOW),
    ("futex", (), ALLOW),
    ("exit_group", (), ALLOW),
    ("getrandom", (), ALLOW),
    ("execve", (), REFUSE),
    ("socket", (2, 1), REFUSE),
    ("ptrace", (), REFUSE),
    ("rt_sigqueueinfo", (7, 9), REFUSE),
    ("setxattr", (), REFUSE),
    ("utimensat", (), REFUSE),
    ("fchmodat", (), REFUSE),
    ("io_uring_setup", (), REFUSE),
    ("memfd_create", (), REFUSE),
    ("clone", (THREAD | 0xF00,), ALLOW),
    ("clone", (17,), REFUSE),
    ("clone", (THREAD | NEW_USER,), REFUSE),
    ("clone3", (), LACKS),
    ("kill", (7, 15), ALLOW),
    ("kill", (8, 15), REFUSE),
    ("kill", (0, 15), REFUSE),
    ("kill", ((1 << 32) - 1, 15), REFUSE),
    ("tgkill", (7, 7, 15), ALLOW),
    ("tgkill", (1, 1, 15), REFUSE),
    ("prlimit64", (0, 3), ALLOW),
    ("prlimit64", (7, 3), REFUSE),
    ("fcntl", (1, 2), ALLOW),
    ("fcntl", (1, 8), REFUSE),
    ("fcntl", (1, 1031), REFUSE),
    ("fallocate", (3, 0, 0, 4096), ALLOW),
    ("fallocate", (3, 1, 0, 4096), REFUSE),
    ("ioctl", (1, 0x5401), ALLOW),
    ("ioctl", (1, 0x5412), REFUSE),
    ("prctl", (15,), ALLOW),
    ("prctl", (1,), REFUSE),
    ("socketpair", (1, 1 | 0o2000000), ALLOW),
    ("socketpair", (1, 2), REFUSE),
    ("socketpair", (2, 1), REFUSE),
    ("sendto", (5, 0, 1, 0, 0, 0), ALLOW),
    ("sendto", (5, 0, 1, 0, 1 << 40, 16), REFUSE),
    ("sendto", (5, 0, 1, 0, 4096, 16), REFUSE),
    ("sendmsg", (5,), ALLOW),
    ("sendmsg", (6,), REFUSE),
    ("openat", (0, 0, os.O_RDONLY), ALLOW),
    ("openat", (0, 0, os.O_WRONLY | CREATE | TRUNCATE), ALLOW),
    ("openat", (0, 0, os.O_RDONLY | TRUNCATE), REFUSE),
    ("mkdirat", (), ALLOW),
]
RULES = {"own_pid": 7, "channel": 5, "notify": False, "counts_files": False, "by_path": False}


@pytest.mark.parametrize(("name", "arguments", "answer"), CASES)
def test_calls_are_decided_by_their_arguments(machine, name, arguments, answer):
    number = NUMBERS[machine][name]
    program = system_calls.filter_program(system_calls.Rules(**RULES))
    assert decided(program, machine, number, arguments) == answer
    assert system_calls.call_name(number) == name


def test_a_listener_is_asked_about_threads_and_files_and_whatever_is_refused(machine):
    numbers = NUMBERS[machine]
    program = system_calls.filter_program(
        system_calls.Rules(**{**RULES, "notify": True, "counts_files": True})
    )
    for name, arguments, made in (
        ("clone", (THREAD,), "thread"),
        ("openat", (0, 0, CREATE | os.O_WRONLY), "file"),
        ("openat", (0, 0, CREATE | TRUNCATE), None),
        ("mkdirat", (), "file"),
        ("clone", (17,), None),
        ("socket", (), None),
    ):
        assert decided(program, machine, numbers[name], arguments) == ASK
        assert system_calls.counted_resource(numbers[name], [*arguments, *[0] * 6]) == made
    assert decided(program, machine, numbers["openat"], (0, 0, 0)) == ALLOW


def test_in_a_root_of_its_own_modes_may_be_changed(machine):
    program = system_calls.filter_program(system_calls.Rules(**{**RULES, "by_path": True}))
    for name in ("fchmodat", "utimensat"):
        assert decided(program, machine, NUMBERS[machine][name]) == ALLOW
    assert decided(program, machine, NUMBERS[machine]["setxattr"]) == REFUSE


def test_other_architectures_of_one_machine_end_the_program(machine):
    program = system_calls.filter_program(system_calls.Rules(**RULES))
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert decided(program, other, NUMBERS[machine]["read"]) == KILL
    assert decided(program, machine, 0x40000000 + 1) == KILL


ORDINARY = """
import os
from plugrl.core.sandbox.box import Box
box = Box()
print(os.getuid(), len(box.kernel_protections()), box.script("print(1)").output.strip())
tested = box.asserts("def f(): return 1", "assert f() == 1").verdict
print(box.script("import os; os.fork()").refused, tested)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="another user is needed")
def test_an_ordinary_user_confines_programs_too(tmp_path):
    root = Path(hostile.__file__).parents[2]
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run(
            [python, "-B", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{ORDINARY}"],
            user=65534, group=65534, extra_groups=[], cwd="/", env={},
            capture_output=True, text=True, check=False,
        ) if accessible(python) else None  # fmt: skip
        if done is not None and done.returncode == 0:
            break
    else:
        pytest.skip("an ordinary user has no Python here")
    who, rest = done.stdout.splitlines()
    if who.split()[1] == "2":
        assert who == "65534 2 1"
        assert rest == "('clone',) done"


def accessible(python):
    """Whether an ordinary user can run it."""
    try:
        done = subprocess.run(
            [python, "-c", "import sys; assert sys.version_info >= (3, 11)"],
            user=65534, group=65534, extra_groups=[], cwd="/", env={},
            capture_output=True, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


def test_a_missing_bubblewrap_is_named():
    sandbox = make_sandbox({"type": "bubblewrap", "program": "no-such-program"})
    with pytest.raises(ConfigError, match="no program 'no-such-program'; install bubblewrap"):
        sandbox.fault()
