"""The process of one program: gives up all rights that the program must not have, then runs it.

The program runs in this very process, because no other can be started once that is denied. Nothing
in this process decides the verdict: the expected results are kept elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from plugrl.core.sandbox.inside import assertions, audit_hook, kernel, system_calls

#: The numbers of the descriptors in the process of a program.
_RESULT, _STATUS, _QUESTIONS, _ANSWERS = 3, 4, 5, 6
#: How many descriptors a program may have. The channel is the one above them: messages, which can
#: carry descriptors along, are allowed there alone, and no program opens another with its number.
_FILES = _CHANNEL = 64
_MEGABYTE = 1 << 20
#: More than a process that was started with only its standard streams can have.
_MOST_FILES = 4096
#: Folders and files that programs may read besides their own.
READABLE = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/localtime", "/dev/zero", "/dev/urandom")
DEVICES = ("/dev/null",)
_SHRINK, _GROW, _WRITE, _SEAL = 2, 4, 8, 1


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The descriptors of the process of a program, or of its tests.

    Attributes:
        pipes: where it writes ``output``, ``errors``, ``status`` and ``result``.
        channel: the socket over which it sends the listener of its filter.
        questions: for a program, the pipes for questions and answers; for tests, the pipes for
            answers and questions.
    """

    pipes: Mapping[str, int]
    channel: int
    questions: tuple[int, int] | None


def readable() -> list[str]:
    """The paths that programs may read: the libraries of the system and this Python."""
    return [*READABLE, *dict.fromkeys((sys.prefix, sys.base_prefix))]


def run_program(job: Mapping[str, Any], box: str, payload: int, ends: Descriptors) -> NoReturn:
    """Run the program of ``job`` in this process; its payload has ``payload`` bytes."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        given = json.loads(read_exactly(0, payload))
        os.write(ends.pipes["status"], b" ")
        _prepare(job, box, given, ends)
        signal.setitimer(signal.ITIMER_PROF, job["limits"]["seconds"])
        code = _exit_code(job["mode"], given)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def read_exactly(file: int, count: int) -> bytes:
    """The next ``count`` bytes; fewer at the end of the stream."""
    found = bytearray()
    while len(found) < count and (data := os.read(file, min(count - len(found), 1 << 20))):
        found += data
    return bytes(found)


def _leave(code: int) -> NoReturn:
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        code = code or 120
    finally:
        os._exit(code)


def _prepare(job: Mapping[str, Any], box: str, given: Mapping[str, Any], ends: Descriptors) -> None:
    if job["mode"] != "tests":
        # Tests are never written to a file, which a program might find.
        with open(os.path.join(box, "program.py"), "wb") as file:
            file.write(given["program"].encode("utf-8", "replace"))
    _place_descriptors(_sealed_file(given.get("stdin", "").encode("utf-8", "replace"), box), ends)
    os.chdir(box)
    os.environ.update(HOME=box, TMPDIR=box)
    tempfile.tempdir = None
    _stream("stdin", 0, "r", "surrogateescape")
    _stream("stdout", 1, "w", "surrogateescape")
    _stream("stderr", 2, "w", "backslashreplace")
    sys.argv = ["program.py"]
    # Frames below the program do not count against its recursion limit.
    sys.setrecursionlimit(sys.getrecursionlimit() + _depth())
    sys.path.insert(0, box)
    done = _restrict(job, box)
    os.write(_STATUS, json.dumps(done).encode())
    os.close(_STATUS)
    os.close(_CHANNEL)
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugrl"]:
        del sys.modules[name]


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def _stream(name: str, file: int, mode: str, errors: str) -> None:
    """Open a standard stream the way a new interpreter does."""
    buffering = 1 if name == "stderr" else -1
    stream = open(file, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _sealed_file(data: bytes, box: str) -> int:
    """A descriptor of a file with ``data`` that cannot be changed."""
    try:
        made = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):
        path = os.path.join(box, "stdin")
        with open(path, "wb") as file:
            file.write(data)
        found = os.open(path, os.O_RDONLY)
        os.unlink(path)
        return found
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(made, rest) :]
    os.lseek(made, 0, os.SEEK_SET)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, _SHRINK | _GROW | _WRITE | _SEAL)
    return made


def _place_descriptors(stdin: int, ends: Descriptors) -> None:
    """Move each descriptor to its number, and close all others."""
    pipes = ends.pipes
    wanted = dict(enumerate([stdin, *(pipes[n] for n in ("output", "errors", "result", "status"))]))
    wanted |= dict(zip((_QUESTIONS, _ANSWERS), ends.questions or (), strict=False))
    wanted[_CHANNEL] = ends.channel
    above = {n: fcntl.fcntl(each, fcntl.F_DUPFD, _CHANNEL + 1) for n, each in wanted.items()}
    for number, each in above.items():
        os.dup2(each, number)
    os.closerange(len(wanted) - 1, _CHANNEL)
    os.closerange(_CHANNEL + 1, _MOST_FILES)


def _restrict(job: Mapping[str, Any], box: str) -> list[str]:
    """Apply the limits; return the names of the protections that the kernel enforces."""
    given = job["limits"]
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": math.ceil(given["seconds"]) + 1,
        "RLIMIT_FSIZE": given["file_bytes"],
        "RLIMIT_NOFILE": _FILES,
        "RLIMIT_MEMLOCK": _MEGABYTE,
        "RLIMIT_AS": given["memory_bytes"],
    }
    for name, value in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):
            if name in ("RLIMIT_CPU", "RLIMIT_FSIZE"):
                raise
    done = _ask_kernel(job["own_root"], box) if job["kernel"] else []
    if "calls" not in done:
        # This counts all processes of the user, so not even a thread can be started.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if len(done) < 2:
        audit_hook.refuse(readable(), box)
    return done


def _ask_kernel(own_root: bool, box: str) -> list[str]:
    done: list[str] = []
    try:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.drop_capabilities()
    except (OSError, KeyError, AttributeError):
        return done
    with contextlib.suppress(OSError):
        kernel.confine_files(readable(), [box], DEVICES)
        done.append("files")
    for notify in (True, False):
        rules = system_calls.Rules(
            own_pid=os.getpid(),
            channel=_CHANNEL,
            notify=notify,
            counts_files=not own_root,
            by_path=own_root,
        )
        try:
            listener = kernel.filter_calls(system_calls.filter_program(rules), listen=notify)
        except (OSError, KeyError):
            continue
        if notify:
            channel = socket.socket(fileno=_CHANNEL)
            socket.send_fds(channel, [b"l"], [listener])
            channel.detach()
            os.close(listener)
        done.append("calls")
        break
    return done


def _exit_code(mode: str, given: Mapping[str, Any]) -> int:
    """Run the program and return its exit code."""
    try:
        _run(mode, given)
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        # Frames of this file would only distract from the program.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1
    finally:
        if mode == "script":
            _finish()


def _finish() -> None:
    """Finish like an interpreter: wait for threads and run the functions of ``atexit``."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _run(mode: str, given: Mapping[str, Any]) -> None:
    if mode == "tests":
        answers, questions = _question_streams()
        with answers, questions:
            assertions.run_tests(given["program"], answers, questions)
        os.write(_RESULT, b"true")
        return
    # pickle and copy look up the classes of a program there.
    module = types.ModuleType("__main__" if mode == "script" else "program")
    sys.modules[module.__name__] = module
    names = module.__dict__
    exec(compile(given["program"], "program.py", "exec"), names)
    if mode == "asserts":
        exec(compile(given["code"], "test.py", "exec"), names)
        os.write(_RESULT, b"true")
    elif mode == "function":
        _write(json.dumps(_call_function(names, given), default=_json_default))
    elif mode == "questions":
        questions, answers = _question_streams()
        with questions, answers:
            assertions.answer_questions(names, questions, answers)


def _question_streams() -> tuple[IO[str], IO[str]]:
    """The streams from and to the other process."""
    return open(_QUESTIONS, encoding="utf-8"), open(_ANSWERS, "w", encoding="utf-8")


def _write(text: str) -> None:
    rest = memoryview(text.encode("utf-8", "surrogatepass"))
    while rest:
        rest = rest[os.write(_RESULT, rest) :]


def _call_function(names: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    function = names.get(given["name"])
    if function is None and "Solution" in names:
        function = getattr(names["Solution"](), given["name"], None)
    if not callable(function):
        raise NameError(f"the program has no function {given['name']!r}")
    return function(*given["arguments"])


def _json_default(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} cannot be compared")
