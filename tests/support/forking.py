"""Processes that need not import torch and transformers: copies of one that already has.

A Python process that trains takes seconds to import what it needs, and hundreds of tests start
one. ``run`` and ``Process`` ask a server, one for each session of pytest, that has imported the
libraries (none of plugrl's modules) and forks: what runs is a process of its own with its own
number, signals, environment, folder, limits and exit code. Tests of what a start imports or costs,
of the interpreter's options, and those that look for processes in ``/proc`` by their environment
or command line start a real one. Where a process is small and runs one module of plugrl, a server
of that module's own forks it: ``libraries``.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import types
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from waiting import DEADLINE

LIBRARIES = """numpy torch torch._dynamo tensordict omegaconf pluggy rich.console typer
    typer._adapters yaml jinja2
    safetensors.torch transformers transformers.activations transformers.cache_utils
    transformers.masking_utils transformers.modeling_layers transformers.modeling_utils
    transformers.models.auto.modeling_auto transformers.models.qwen3.modeling_qwen3
    transformers.generation.utils"""
_MOST = 2**20
_MOST_FILES = 16
#: Tests of a session that is more than a few files: it needs all that is imported beforehand.
MANY = 1000
#: The variable that names the folder of the session's servers.
FOLDER = "FORKING_FOLDER"
#: Open in that folder for as long as its servers are to go on.
LIFELINE = "lifeline"
_PYTHONPATH = os.environ.get("PYTHONPATH")
_seconds: list[float] = []
#: Names the file where stand-ins note what their processes took, which are no children of theirs.
_NOTES = "FORKING_SECONDS"


def processor_time() -> float:
    """Processor seconds of the forked processes that this one and its stand-ins have waited for."""
    file = _notes()
    noted = file.read_text("utf-8").split() if file.exists() else []
    return sum(_seconds) + sum(map(float, noted))


def _notes() -> Path:
    return Path(os.environ[FOLDER], f"seconds-{os.getpid()}")


class Process:
    """A forked ``python *words``, in the manner of ``subprocess.Popen``.

    Args:
        words: what follows ``python``: ``-m MODULE``, ``-c PROGRAM`` or a file, and its arguments.
        cwd: its folder; that of this process by default.
        env: its environment; that of this process by default.
        stdin: what it reads; nothing by default.
        stdout: a file, or ``subprocess.PIPE`` for a text file ``stdout`` to read from.
        stderr: likewise, or ``subprocess.STDOUT``.
        start_new_session: make it the head of a new process group, to be killed as one, and of
            the terminal that it reads, if that is one.
        pass_fds: descriptors that it has too, under the same numbers.
        libraries: modules that have been imported in the process that forks.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout=None,
        stderr=None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
        libraries: str = LIBRARIES,
    ) -> None:
        self.args = [str(word) for word in words]
        self.returncode: int | None = None
        self._readers: list[_Reader] | None = None
        self.stdout, out = _opened(stdout, 1)
        self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _opened(stderr, 2)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server(libraries)))
        request = {
            "words": self.args,
            "cwd": str(Path(cwd or ".").absolute()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
            "files": [0, 1, 2, *pass_fds],
        }
        with open(os.devnull, encoding="utf-8") as nothing:
            read = stdin if stdin is not None else nothing.fileno()
            send(self._socket, request, [read, out, err, *pass_fds])
        for number in {out, err} - {1, 2}:
            os.close(number)
        self._answers = self._socket.makefile("r")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, minus the number of the signal that killed it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            code, seconds = self._answers.readline().split()
            self.returncode = int(code)
            _seconds.append(float(seconds))
            self._socket.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit code of an ended process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Wait, and give all that it wrote to the pipes.

        Raises:
            subprocess.TimeoutExpired: it still runs, or has left a process that writes to them.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if self._readers is None:
            self._readers = [_Reader(file) for file in (self.stdout, self.stderr)]
        for reader in self._readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if end is None else max(1.0, end - time.monotonic()))
        out, err = (reader.text for reader in self._readers)
        return out, err

    def __enter__(self) -> Process:
        """Itself, to be waited for at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        for file in (self.stdout, self.stderr):
            if file is not None:
                file.close()

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _Reader(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, file) -> None:
        super().__init__(daemon=True)
        self.file = file
        self.text: str | None = None
        self.start()

    def run(self) -> None:
        if self.file is not None:
            self.text = self.file.read()


def run(
    words: Sequence[object],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = DEADLINE,
    stderr: int | None = None,
    check: bool = False,
    libraries: str = LIBRARIES,
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run([sys.executable, *words], capture_output=True, text=True)``, forked.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds, and was killed.
        AssertionError: ``check`` is true and it failed; the message is its error output.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Process(
            words, cwd=cwd, env=env, stdout=out, stderr=stderr or err, libraries=libraries
        )
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    assert code == 0 or not check, f"{process.args} ended with {code}: {texts[1]}"
    return subprocess.CompletedProcess(process.args, code, *texts)


def stand_ins(folder: Path, libraries: str = LIBRARIES) -> dict[str, str]:
    """Write programs ``plugrl``, ``pytest`` and ``python`` that fork, and give what finds them.

    They are for shells: what is given are variables of the environment, among them ``PATH``. What
    forks has imported ``libraries``.
    """
    programs = Path(sys.executable).parent
    for name in ("plugrl", "pytest", "python"):
        file = folder / name
        file.write_text(
            f"#!{sys.executable} -S\nimport sys\nsys.path[0] = {str(Path(__file__).parent)!r}\n"
            f"import forking\nforking.stand_in({str(programs / name)!r})\n"
        )
        file.chmod(0o755)
    path = os.pathsep.join([str(folder), str(programs), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "FORKING_SERVER": str(server(libraries)), _NOTES: str(_notes())}


def stand_in(program: str) -> None:
    """Be a program of the environment's ``bin`` folder, with the words of the command line."""
    words = sys.argv[1:]
    if Path(program).name != "python":
        words = [program, *words]
    elif not words or not (words[0] in ("-m", "-c") or words[0].endswith(".py")):
        os.execv(program, [program, *words])
    process = Process(words, stdin=0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    with open(os.environ[_NOTES], "a", encoding="utf-8") as file:
        file.write(f"{sum(_seconds)}\n")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _opened(wanted, number: int):
    """A file to read from, if it is wanted, and the descriptor that the process writes to."""
    if wanted is None:
        return None, number
    if wanted == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    if wanted != subprocess.PIPE:
        return None, os.dup(wanted if isinstance(wanted, int) else wanted.fileno())
    read, write = os.pipe()
    return open(read, encoding="utf-8"), write


def send(connection: socket.socket, request: dict, files: Sequence[int]) -> None:
    """Ask the server for a process with these files, the three standard ones first."""
    data = json.dumps(request).encode()
    socket.send_fds(connection, [f"{len(data):8}".encode()], list(files))
    connection.sendall(data)


@functools.cache
def server(libraries: str = LIBRARIES) -> Path:
    """The socket of the session's server that has imported ``libraries``, or of a stand-in's."""
    if "FORKING_SERVER" in os.environ and libraries == LIBRARIES:
        return Path(os.environ["FORKING_SERVER"])
    folder = Path(os.environ[FOLDER])
    address = folder / f"{zlib.crc32(libraries.encode()):x}"
    # The first process of pytest that needs it starts it, and the others wait for that.
    with open(folder / "lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            _start(address, libraries)
        # A test that has forked in the meantime would hold it on.
        fcntl.flock(lock, fcntl.LOCK_UN)
    return address


def _start(address: Path, libraries: str) -> None:
    """Start a server that ends when the session of pytest closes the lifeline."""
    variables = {k: v for k, v in os.environ.items() if k not in ("STARTED_BY_TEST", "PYTHONPATH")}
    # What this process itself imports, whatever a test has made of it.
    variables |= {"PYTHONPATH": _PYTHONPATH} if _PYTHONPATH else {}
    variables["OMP_NUM_THREADS"] = "1"  # Threads do not survive a fork.
    lifeline = os.open(address.with_name(LIFELINE), os.O_RDONLY | os.O_NONBLOCK)
    process = subprocess.Popen(
        [sys.executable, __file__, str(address), libraries],
        stdin=lifeline, stdout=subprocess.PIPE, env=variables, cwd=address.parent,
        start_new_session=True,
    )  # fmt: skip
    os.close(lifeline)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"


def serve(address: str, libraries: str) -> dict | None:
    """Fork for each request until standard input ends; in a forked process, give its request."""
    for name in libraries.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    tasks = Path("/proc/self/task").iterdir()
    threads = [Path(task, "comm").read_text("utf-8").strip() for task in tasks]
    # Other threads do not survive a fork; jemalloc, which pyarrow brings, starts its own anew.
    assert set(threads[1:]) <= {"jemalloc_bg_thd"}, threads
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _supervise(connection)
        connection.close()


def _supervise(connection: socket.socket) -> dict:
    """Start the process and report its number and its end; in the process, give the request."""
    head, files, _, _ = socket.recv_fds(connection, 8, _MOST_FILES)
    data = b""
    while len(data) < int(head):
        data += connection.recv(_MOST)
    number = os.fork()
    if number:
        for file in {0, 1, 2, *files}:
            os.close(file)
        connection.sendall(b"%d\n" % number)
        _, status, usage = os.wait4(number, 0)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            connection.sendall(b"%d %f\n" % (code, usage.ru_utime + usage.ru_stime))
        os._exit(0)
    connection.close()
    request = json.loads(data)
    # First out of the way, because the numbers that they come with may be those that they get.
    aside = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1000) for file in files]
    for file in files:
        os.close(file)
    for target, file in zip(request["files"], aside, strict=True):
        os.dup2(file, target)
        os.close(file)
    return request


def become(request: dict) -> None:
    """Run what was asked for, in this process, as Python's own start does."""
    # As the first process of pytest may, the server may have been started with it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    first, *rest = request["words"]
    path = request["env"].get("PYTHONPATH", "")
    sys.path[1:1] = [folder for folder in path.split(os.pathsep) if folder]
    if first in ("-m", "-c"):
        sys.path[0] = request["cwd"] if first == "-m" else ""
        sys.argv = [first, *rest[1:]]
    else:
        sys.path[0] = str(Path(first).absolute().parent)
        sys.argv = [first, *rest]
    if first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        runpy.run_path(first, run_name="__main__")


def leave(request: dict) -> None:
    """Run what was asked for, and end as Python does, but for the taking apart of all objects.

    That would copy every page which this process shares with the server, for seconds.
    """
    code = 0
    try:
        become(request)
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    asked = serve(*sys.argv[1:])
    if asked is not None:
        leave(asked)
