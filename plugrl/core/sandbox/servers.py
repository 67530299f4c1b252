"""Processes that run programs for this one: each takes one program at a time."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from plugrl.core.errors import RunError

#: The folder that has plugrl's package.
_ROOT = str(Path(__file__).parents[3])
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from plugrl.core.sandbox.inside.server import main; del sys.path[0]; main()"
)
#: Seconds in which a server must start, and in which it must answer after the time of a program.
_PATIENCE = 60.0
#: Seconds in which a server ends that is not asked any more.
_LAST_WORDS = 2.0
#: Changes the command that starts a server, such as by another one that it becomes part of.
Wrap = Callable[[Sequence[str]], Sequence[str]]


class ServerGoneError(Exception):
    """A server ended, or was silent, before it answered."""


def server_command(*, packages: bool) -> list[str]:
    """How a server is started, without its last word: the sort of root that it works in."""
    options = ["-s", "-P", "-B", "-X", "utf8", *([] if packages else ["-S"])]
    return [sys.executable, *options, "-c", _START, _ROOT]


def _environment() -> dict[str, str]:
    """Nothing of this process's own: it may hold secrets."""
    kept = {"PATH": "", "HOME": "/", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    # Each thread of a numerical library takes address space.
    return kept | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Server:
    """One process that runs programs, as long as it lives.

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
                words,
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
        """The process."""
        return self._process.pid

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        return cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def ask(self, job: Mapping[str, Any], payloads: Sequence[bytes]) -> dict[str, Any]:
        """What came of a job.

        Raises:
            ServerGoneError: it ended before it answered, or took too long.
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
        """End it."""
        for pipe in self._pipes():
            pipe.close()
        self._errors.close()
        # It ends by itself when nobody asks any more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)
            return
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """In a process that was forked from the one that started it: close what leads to it."""
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
    """As many servers of one sort as there are programs at a time; they are used again.

    Args:
        words: the command that starts one, without its last word.
        own_root: whether they are to work in a root of their own where the system allows it.
    """

    def __init__(self, words: Sequence[str], *, own_root: bool) -> None:
        self._words = [*words]
        self._roots = ["own", "plain"] if own_root else ["plain"]
        self._idle: list[Server] = []
        self._lock = threading.Lock()
        self._made: list[Server] = []

    def ask(self, job: Mapping[str, Any], payloads: Sequence[bytes]) -> dict[str, Any]:
        """What came of a job; a server that has ended is replaced once.

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
                continue
            except BaseException:
                # What comes next from it would be of this job.
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
        """What a server says of the system: ``own_root`` and ``landlock``, the version or 0."""
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
                # What did not work once is not tried again.
                self._roots = [root]
                self._made.append(server)
            return server
        raise AssertionError("no sort of root is asked for")

    def _drop(self, server: Server) -> None:
        with self._lock:
            self._made.remove(server)
        server.close()

    def processes(self) -> list[Server]:
        """Those that are idle or at work."""
        with self._lock:
            return list(self._made)

    def close(self) -> None:
        """End the servers that are not at work."""
        with self._lock:
            idle, self._idle = self._idle, []
        for server in idle:
            self._drop(server)

    def forget(self) -> None:
        """Leave them to the process from which this one was forked."""
        self._lock = threading.Lock()
        made, self._made, self._idle = self._made, [], []
        for server in made:
            server.forget()


_all: dict[tuple[tuple[str, ...], bool], Servers] = {}


def servers(words: Sequence[str], *, own_root: bool) -> Servers:
    """The servers of this process that are started by ``words``."""
    return _all.setdefault((tuple(words), own_root), Servers(words, own_root=own_root))


def running_servers() -> list[Server]:
    """The processes that run programs for this one now."""
    return [server for each in _all.values() for server in each.processes()]


def close_servers() -> None:
    """End the processes that run programs, but those at work; the next program starts one."""
    for each in _all.values():
        each.close()


def _forget_all() -> None:
    for each in _all.values():
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
atexit.register(close_servers)
