"""Supervises one program: enforces limits, decides about system calls, collects its output."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from plugrl.core.sandbox.inside import box_folder, namespaces, system_calls
from plugrl.core.sandbox.inside.program import Descriptors, read_exactly, run_program

#: The folders of a program and of its tests, in a root file system of their own.
BOXES = ("/box", "/tests")
#: Seconds between checks of processor time and wall-clock time, which nothing reports.
_LOOK = 0.05
#: The number of threads that a program may start in total.
_THREADS = 256
#: The number of denied calls that are reported by name.
_NAMED = 16
#: The listener of a filter: receive a notice, send an answer, have the call go on.
_RECEIVE, _SEND, _NOTICE, _CONTINUE = 0xC0502100, 0xC0182101, 80, 1


class Child:
    """One process that runs a program, or the tests of one.

    Args:
        job: the limits, and the mode to run it in.
        box: the folder that it may write to.
        payload: the size of its payload in the control stream, in bytes.
        questions: the pipes for questions to a program and its answers.
    """

    def __init__(
        self, job: dict[str, Any], box: str, payload: int, questions: tuple[int, int] | None = None
    ) -> None:
        self._limits = job["limits"]
        self._own_root = job["own_root"]
        self._box = box
        self.stopped: str | None = None
        self.code: int | None = None
        self.buffers = {name: bytearray() for name in ("output", "errors", "status", "result")}
        self.refused: dict[str, None] = {}
        self._listener: int | None = None
        self._threads = self._files = 0
        self._used = 0.0
        pipes = {name: os.pipe() for name in self.buffers}
        self._channel, channel = socket.socketpair()
        ends = Descriptors(
            {n: write for n, (_, write) in pipes.items()}, channel.fileno(), questions
        )
        self.pid = os.fork()
        if self.pid == 0:
            run_program(job, box, payload, ends)
        channel.close()
        for _, write in pipes.values():
            os.close(write)
        # Wait until the child has read its payload from the shared control stream.
        if os.read(pipes["status"][0], 1) != b" ":
            raise OSError("a process ended before it had its program")
        self._files_of = {read: name for name, (read, _) in pipes.items()}
        for read in (*self._files_of, self._channel.fileno()):
            os.set_blocking(read, False)

    def descriptors(self) -> list[int]:
        """The descriptors to wait for."""
        found = [*self._files_of]
        if self._listener is not None:
            found.append(self._listener)
        elif self._channel.fileno() >= 0:
            found.append(self._channel.fileno())
        return found

    def read(self, file: int) -> None:
        """Read from one of :meth:`descriptors`."""
        if file == self._listener:
            self._answer()
        elif file in self._files_of:
            self._read_output(file)
        else:
            self._take_listener()

    def _read_output(self, file: int) -> None:
        try:
            data = os.read(file, 1 << 16)
        except BlockingIOError:
            return
        name = self._files_of[file]
        if not data:
            del self._files_of[file]
            os.close(file)
        held, limit = self.buffers[name], self._limits["output_bytes"]
        held += data
        if len(held) > limit:
            if name == "errors":
                del held[: len(held) - limit]
                return
            del held[limit:]
            self.stop("output")

    def _take_listener(self) -> None:
        with contextlib.suppress(OSError):
            _, found, _, _ = socket.recv_fds(self._channel, 1, 1)
            self._listener = found[0] if found else None
        self._channel.close()

    def _answer(self) -> None:
        """Decide about a system call that the filter of the program leaves to the listener."""
        listener = self._listener or 0
        if not _has_notice(listener):
            # No process is left that could call.
            os.close(listener)
            self._listener = None
            return
        notice = bytearray(_NOTICE)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except OSError:
            # The caller has died.
            return
        ticket, _, _, number = struct.unpack_from("=QIIi", notice)
        error = self._error(number, struct.unpack_from("=6Q", notice, 32))
        answer = struct.pack("=QqiI", ticket, 0, -error, 0 if error else _CONTINUE)
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _SEND, answer)

    def _error(self, number: int, arguments: tuple[int, ...]) -> int:
        made = system_calls.counted_resource(number, arguments)
        if made == "thread":
            self._threads += 1
            return 0 if self._threads <= _THREADS else errno.EAGAIN
        if made == "file" and not self._own_root:
            self._files += 1
            if self._files > self._limits["files"]:
                # Some may be deleted by now. The file of the program itself counts for the new one.
                self._files = box_folder.measure(self._box, self._limits["files"] + 1)[0]
            if self._files <= self._limits["files"]:
                return 0
            self.stop("files")
            return errno.ENOSPC
        if len(self.refused) < _NAMED:
            self.refused[system_calls.call_name(number)] = None
        return errno.EPERM

    def look(self, deadline: float) -> None:
        """Stop the program if it exceeds a limit that the kernel does not enforce."""
        if self.code is not None or self.stopped:
            return
        if time.monotonic() > deadline or self._processor_time() > self._limits["seconds"] + 0.1:
            self.stop("time")
        elif self._is_full():
            self.stop("files")

    def _is_full(self) -> bool:
        """Whether it has created more or larger files than allowed."""
        limits = self._limits
        if self._own_root:
            found = os.statvfs(self._box)
            return found.f_ffree == 0 or found.f_bfree == 0
        count, size = box_folder.measure(self._box, limits["files"] + 1)
        return bool(count > limits["files"] + 1 or size > limits["all_bytes"])

    def _processor_time(self) -> float:
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def stop(self, verdict: str) -> None:
        """Kill the process; ``verdict`` is the reason, unless there was one before."""
        if self.code is None:
            self.stopped = self.stopped or verdict
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self, options: int = os.WNOHANG) -> None:
        """Reap the process if it has ended; ``options=0`` waits for its end."""
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, options)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self._used = usage.ru_utime + usage.ru_stime
                if not self.stopped and self._is_full():
                    self.stopped = "files"

    def outcome(self, *, answers: bool) -> dict[str, Any]:
        """The outcome of the program; ``answers``: it must have written a result."""
        texts = {
            name: bytes(data).decode("utf-8", "replace") for name, data in self.buffers.items()
        }
        return {
            "verdict": self._verdict(texts["errors"], answers and not texts["result"]),
            "output": texts["output"],
            "errors": "\n".join(texts["errors"].strip().splitlines()[-20:]),
            "result": texts["result"],
            "kernel": json.loads(texts["status"] or "null"),
            "refused": list(self.refused),
        }

    def _verdict(self, errors: str, is_silent: bool) -> str:
        code = self.code or 0
        if self.stopped is not None:
            return self.stopped
        # RLIMIT_CPU ends a program that ignores the other signals with SIGKILL.
        is_late = code == -signal.SIGKILL and self._used > self._limits["seconds"]
        if is_late or code in (-signal.SIGXCPU, -signal.SIGPROF):
            return "time"
        if code == -signal.SIGXFSZ:
            return "files"
        if code < 0:
            return "killed"
        if code and "MemoryError" in errors[-400:]:
            return "memory"
        return "raised" if code or is_silent else "done"


def _has_notice(listener: int) -> bool:
    """Whether a call is waiting; receiving without one could block forever."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def supervise(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program of ``job``, whose payloads follow in the control stream; its outcome.

    Raises:
        OSError: no process or folder can be made.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    payloads = job["payloads"]
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(_box(job, place)) for place in BOXES[: len(payloads)]]
        deadline = time.monotonic() + job["limits"]["wall_seconds"]
        children = _start_children(job, boxes)
        _watch(children, woken, deadline)
        if len(children) == 1:
            return children[0].outcome(answers=job["mode"] in ("function", "asserts"))
        return _combined_outcome(*children)


def _start_children(job: dict[str, Any], boxes: list[str]) -> list[Child]:
    if len(boxes) == 1:
        return [Child(job, boxes[0], job["payloads"][0])]
    # Questions go over one pipe and answers over the other. The program is started first, because
    # its payload comes first in the stream.
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    first, second = job["payloads"]
    program = Child({**job, "mode": "questions"}, boxes[0], first, (asked, answer))
    os.close(asked)
    os.close(answer)
    tests = Child({**job, "mode": "tests"}, boxes[1], second, (answered, ask))
    os.close(answered)
    os.close(ask)
    return [program, tests]


def _combined_outcome(program: Child, tests: Child) -> dict[str, Any]:
    """The outcome of a program that was called by tests."""
    ours, theirs = program.outcome(answers=False), tests.outcome(answers=True)
    if theirs["verdict"] == "done":
        return {**ours, "verdict": "done", "result": ""}
    verdict = ours["verdict"] if ours["verdict"] != "done" else theirs["verdict"]
    errors = "\n".join(filter(None, (ours["errors"], theirs["errors"])))
    return {**ours, "verdict": verdict, "errors": errors, "result": ""}


def _watch(children: list[Child], woken: int, deadline: float) -> None:
    """Serve the children until all have ended and nothing is left to read."""
    try:
        while True:
            owners = {file: child for child in children for file in child.descriptors()}
            running = any(child.code is None for child in children)
            ready, _, _ = select.select([*owners, woken, 0], [], [], _LOOK if running else 0)
            if 0 in ready:
                # The client is gone. Leave through the context managers, which remove the folders.
                sys.exit()
            for file in ready:
                if file == woken:
                    os.read(woken, 1 << 10)
                elif file in owners:
                    owners[file].read(file)
            for child in children:
                child.look(deadline)
                child.reap()
            if children[-1].code is not None and children[0].code is None:
                # The tests are finished, so the program is not needed any more.
                children[0].stop("done")
            if not running and not set(ready) & set(owners):
                return
    finally:
        for child in children:
            child.stop("killed")
        for child in children:
            # A process that still runs could write to the folder that is removed next.
            child.reap(0)


@contextlib.contextmanager
def _box(job: dict[str, Any], place: str) -> Iterator[str]:
    """A folder for one program, which is removed with its contents."""
    limits = job["limits"]
    if job["own_root"]:
        # One more for the file of the program, and one to notice that there are too many.
        namespaces.limited_folder(place, limits["all_bytes"] + (1 << 16), limits["files"] + 2)
        yield place
        return
    # In a container, the temporary folder of the client may not exist.
    folder = job["folder"] if os.path.isdir(job["folder"]) else None
    made = os.path.realpath(tempfile.mkdtemp(prefix="plugrl-box-", dir=folder))
    try:
        yield made
    finally:
        # A folder that cannot be removed does not affect the verdict.
        with contextlib.suppress(OSError):
            box_folder.remove(made)


def main(own_root: bool, size: int) -> None:
    """Read one job with a header of ``size`` bytes from the control stream, run it, and answer."""
    job = json.loads(read_exactly(0, size))
    job["own_root"] = own_root
    if own_root:
        namespaces.private_mounts()
    try:
        answer = supervise(job)
    except OSError as error:
        answer = {"fault": f"{error}"}
    send(answer)
    if "fault" in answer:
        # The rest of the payloads is still in the stream, so the server cannot continue.
        sys.exit(1)


def send(answer: dict[str, Any]) -> None:
    """Write an answer to the control stream: its length, then JSON."""
    data = json.dumps(answer).encode()
    rest = memoryview(len(data).to_bytes(8, "big") + data)
    while rest:
        rest = rest[os.write(1, rest) :]
