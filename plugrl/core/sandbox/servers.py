"""Server processes that run programs for this process, one program at a time each."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from plugrl.core.errors import RunError

#: The folder that contains the package plugrl.
_ROOT = str(Path(__file__).parents[3])
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from plugrl.core.sandbox.inside.server import main; del sys.path[0]; main()"
)
#: Seconds that a server may take to start, and to answer beyond the time limit of a program.
_PATIENCE = 60.0
#: Seconds that a server may take to end once its input is closed.
_LAST_WORDS = 2.0
#: Changes the command that starts a server, for instance to run it in a container.
Wrap = Callable[[Sequence[str]], Sequence[str]]


class ServerGoneError(Exception):
    """A server ended, or did not answer in time."""


def server_command(*, packages: bool) -> list[str]:
    """The command that starts a server, without its last argument, the kind of root."""
    options = ["-s", "-P", "-B", "-X", "utf8", *([] if packages else ["-S"])]
    return [sys.executable, *options, "-c", _START, _ROOT]


def _environment() -> dict[str, str]:
    """The environment of a server: nothing of this process's own, which may hold secrets."""
    kept = {"PATH": "", "HOME": "/", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    # Each thread of a numerical library takes address space.
    return kept | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Server:
    """One server process.

    Args:
        words: the command that starts it.

    Raises:
        RunError: it cannot be started; the text says why.
    """

    def __init__(self, words: Sequence[str]) -> None:
        try:
            self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        except OSError as error:
            raise RunError(f"no process can be started for programs: {error}") from error
        try:
            self._process = subprocess.Popen(
                # Looked up here, since what runs programs is told no PATH.
                [shutil.which(words[0]) or words[0], *words[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(),
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise RunError(f"no process can be started for programs: {error}") from error
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)
        try:
            self.hello = self._answer(time.monotonic() + _PATIENCE)
        except ServerGoneError:
            text = self._last_error()
            self.close()
            raise RunError(f"the process that runs programs did not start: {text}") from None
        if "fault" in self.hello:
            self.close()
            raise RunError(f"the process that runs programs did not start: {self.hello['fault']}")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        return cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"

    def ask(self, job: Mapping[str, Any], payloads: Sequence[bytes]) -> dict[str, Any]:
        """Send a job and return the answer.

        Raises:
            ServerGoneError: the server ended before it answered, or took too long.
        """
        head = json.dumps({**job, "payloads": [len(each) for each in payloads]}).encode()
        deadline = time.monotonic() + job["limits"]["wall_seconds"] + _PATIENCE
        self._send(b"".join((len(head).to_bytes(8, "big"), head, *payloads)), deadline)
        return self._answer(deadline)

    def _send(self, data: bytes, deadline: float) -> None:
        rest, file = memoryview(data), self._pipes()[0].fileno()
        while rest:
            if not _is_ready(file, select.POLLOUT, deadline):
                raise ServerGoneError
            try:
                rest = rest[os.write(file, rest[: 1 << 16]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise ServerGoneError from None

    def _answer(self, deadline: float) -> dict[str, Any]:
        size = int.from_bytes(self._read(8, deadline), "big")
        answer: dict[str, Any] = json.loads(self._read(size, deadline))
        return answer

    def _read(self, count: int, deadline: float) -> bytes:
        found, file = bytearray(), self._pipes()[1].fileno()
        while len(found) < count:
            is_ready = _is_ready(file, select.POLLIN, deadline)
            data = os.read(file, min(count - len(found), 1 << 20)) if is_ready else b""
            if not data:
                raise ServerGoneError
            found += data
        return bytes(found)

    def close(self) -> None:
        """End the server."""
        for pipe in self._pipes():
            pipe.close()
        self._errors.close()
        # It ends by itself once its input is closed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)
            return
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Close the pipes in a process that was forked from the one that owns the server."""
        for pipe in self._pipes():
            pipe.close()
        self._errors.close()
        self._process.returncode = 0


def _is_ready(file: int, event: int, deadline: float) -> bool:
    """Whether a descriptor can be read or written before the deadline, or its other end is gone."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))))


class Servers:
    """A pool of servers that are started on demand and reused.

    Args:
        words: the command that starts one, without its last argument.
        own_root: give them a root file system of their own where the system allows it.
    """

    def __init__(self, words: Sequence[str], *, own_root: bool) -> None:
        self._words = [*words]
        self._roots = ["own", "plain"] if own_root else ["plain"]
        self._idle: list[Server] = []
        self._lock = threading.Lock()
        self._made: list[Server] = []

    def ask(self, job: Mapping[str, Any], payloads: Sequence[bytes]) -> dict[str, Any]:
        """Run a job on a free server; one that has ended is replaced once, by a new one.

        Raises:
            ServerGoneError: the servers ended twice.
            RunError: none can be started.
        """
        fault = ""
        for _ in range(2):
            server = self._acquire()
            try:
                answer = server.ask(job, payloads)
            except ServerGoneError:
                self._drop(server)
                # What ended it may have ended the idle ones, and a job is not run a third time.
                self.close()
                continue
            except BaseException:
                # Its next answer would belong to this job.
                self._drop(server)
                raise
            if "fault" not in answer:
                with self._lock:
                    self._idle.append(server)
                return answer
            fault = answer["fault"]
            self._drop(server)
        if fault:
            raise RunError(f"a box could not be set up: {fault}")
        raise ServerGoneError

    @property
    def hello(self) -> Mapping[str, Any]:
        """The greeting of a server: ``own_root`` tells whether it has a root of its own."""
        server = self._acquire()
        with self._lock:
            self._idle.append(server)
        return server.hello

    def _acquire(self) -> Server:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            roots = list(self._roots)
        for root in roots:
            try:
                server = Server([*self._words, root])
            except RunError:
                if root == roots[-1]:
                    raise
                continue
            with self._lock:
                # A kind of root that failed is not tried again.
                self._roots = [root]
                self._made.append(server)
            return server
        raise AssertionError("no sort of root is asked for")

    def _drop(self, server: Server) -> None:
        with self._lock:
            self._made.remove(server)
        server.close()

    def processes(self) -> list[Server]:
        """All servers, idle or busy."""
        with self._lock:
            return list(self._made)

    def close(self) -> None:
        """End the idle servers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for server in idle:
            self._drop(server)

    def forget(self) -> None:
        """Leave the servers to the process that this one was forked from."""
        self._lock = threading.Lock()
        made, self._made, self._idle = self._made, [], []
        for server in made:
            server.forget()


_all: dict[tuple[tuple[str, ...], bool], Servers] = {}


def servers(words: Sequence[str], *, own_root: bool) -> Servers:
    """The pool of this process for servers that are started by ``words``."""
    return _all.setdefault((tuple(words), own_root), Servers(words, own_root=own_root))


def running_servers() -> list[Server]:
    """All server processes of this process."""
    return [server for each in _all.values() for server in each.processes()]


def close_servers() -> None:
    """End all idle server processes; the next program starts a new one."""
    for each in _all.values():
        each.close()


def _forget_all() -> None:
    for each in _all.values():
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
atexit.register(close_servers)
