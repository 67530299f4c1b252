"""Watches one program: keeps its limits, answers for its calls, and takes what it writes."""

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

#: Where the folder of a program is, and that of its tests, in a root of their own.
BOXES = ("/box", "/tests")
#: Seconds between looks at what nothing reports: processor time and the clock.
_LOOK = 0.05
#: Threads that a program may start, one after the other or at once.
_THREADS = 256
#: How many of the refused calls are named.
_NAMED = 16
#: The listener of a filter: receive a notice, send an answer, have the call go on.
_RECEIVE, _SEND, _NOTICE, _CONTINUE = 0xC0502100, 0xC0182101, 80, 1


class Child:
    """One process that runs a program, or the tests of one.

    Args:
        job: its limits, and how it is to be run.
        box: the folder that it may write to.
        payload: how many bytes of the control stream are its own.
        questions: descriptors over which a program is asked, and answers.
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
        # What was meant for the child has left the control stream once it says so.
        if os.read(pipes["status"][0], 1) != b" ":
            raise OSError("a process ended before it had its program")
        self._files_of = {read: name for name, (read, _) in pipes.items()}
        for read in (*self._files_of, self._channel.fileno()):
            os.set_blocking(read, False)

    def descriptors(self) -> list[int]:
        """The descriptors that have something to read now or later."""
        found = [*self._files_of]
        if self._listener is not None:
            found.append(self._listener)
        elif self._channel.fileno() >= 0:
            found.append(self._channel.fileno())
        return found

    def read(self, file: int) -> None:
        """Take what there is to read from one of :meth:`descriptors`."""
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
        """Say what becomes of a call that the filter of the program leaves to a listener."""
        listener = self._listener or 0
        if not _has_notice(listener):
            # Nobody is left who could call.
            os.close(listener)
            self._listener = None
            return
        notice = bytearray(_NOTICE)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except OSError:
            # Its caller is gone.
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
                # Some may be gone again; the program itself lies there in the place of this one.
                self._files = box_folder.measure(self._box, self._limits["files"] + 1)[0]
            if self._files <= self._limits["files"]:
                return 0
            self.stop("files")
            return errno.ENOSPC
        if len(self.refused) < _NAMED:
            self.refused[system_calls.call_name(number)] = None
        return errno.EPERM

    def look(self, deadline: float) -> None:
        """Stop the program where it has passed a limit that it does not run into by itself."""
        if self.code is not None or self.stopped:
            return
        if time.monotonic() > deadline or self._processor_time() > self._limits["seconds"] + 0.1:
            self.stop("time")
        elif self._is_full():
            self.stop("files")

    def _is_full(self) -> bool:
        """Whether it made more files, or larger ones, than it may."""
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
        """End it; ``verdict`` says why, unless something else was the cause already."""
        if self.code is None:
            self.stopped = self.stopped or verdict
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self, options: int = os.WNOHANG) -> None:
        """Notice that it has ended, if it has; without ``options`` wait for it."""
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, options)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self._used = usage.ru_utime + usage.ru_stime
                if not self.stopped and self._is_full():
                    self.stopped = "files"

    def outcome(self, *, answers: bool) -> dict[str, Any]:
        """What came of it; ``answers``: it must have written a result."""
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
        # The kernel's last means against a program that ignores the others is SIGKILL.
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
    """Whether a call waits; where there is none and will be none, receiving never ends."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def supervise(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program of ``job``, whose payloads follow in the control stream; what came of it.

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
    # A program is asked over one pipe and answers over the other. Its process is made, and has
    # its part of the stream, before that of the tests.
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
    """What came of a program that was asked by tests."""
    ours, theirs = program.outcome(answers=False), tests.outcome(answers=True)
    if theirs["verdict"] == "done":
        return {**ours, "verdict": "done", "result": ""}
    verdict = ours["verdict"] if ours["verdict"] != "done" else theirs["verdict"]
    errors = "\n".join(filter(None, (ours["errors"], theirs["errors"])))
    return {**ours, "verdict": verdict, "errors": errors, "result": ""}


def _watch(children: list[Child], woken: int, deadline: float) -> None:
    """Until all have ended and nothing is left to read."""
    try:
        while True:
            owners = {file: child for child in children for file in child.descriptors()}
            running = any(child.code is None for child in children)
            ready, _, _ = select.select([*owners, woken, 0], [], [], _LOOK if running else 0)
            if 0 in ready:
                # Nobody waits for the answer any more; the folders go away all the same.
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
                # The tests are through.
                children[0].stop("done")
            if not running and not set(ready) & set(owners):
                return
    finally:
        for child in children:
            child.stop("killed")
        for child in children:
            # As long as one runs, it may write to its folder.
            child.reap(0)


@contextlib.contextmanager
def _box(job: dict[str, Any], place: str) -> Iterator[str]:
    """A folder for one program, which goes away with all that is in it."""
    limits = job["limits"]
    if job["own_root"]:
        # The program itself is one of the files, and one more shows that there were too many.
        namespaces.limited_folder(place, limits["all_bytes"] + (1 << 16), limits["files"] + 2)
        yield place
        return
    # Where this runs in a container, the folder of whoever asks may not be there.
    folder = job["folder"] if os.path.isdir(job["folder"]) else None
    made = os.path.realpath(tempfile.mkdtemp(prefix="plugrl-box-", dir=folder))
    try:
        yield made
    finally:
        # What cannot be removed is no fault of the judgement that is made.
        with contextlib.suppress(OSError):
            box_folder.remove(made)


def main(own_root: bool, size: int) -> None:
    """Take one job from the control stream, whose description has ``size`` bytes, and answer."""
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
        # What is left in the stream belongs to nobody.
        sys.exit(1)


def send(answer: dict[str, Any]) -> None:
    """Write an answer to the control stream: its length, then JSON."""
    data = json.dumps(answer).encode()
    rest = memoryview(len(data).to_bytes(8, "big") + data)
    while rest:
        rest = rest[os.write(1, rest) :]
