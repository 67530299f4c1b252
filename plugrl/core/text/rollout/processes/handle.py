"""The driver's end of one worker process: start it, talk to it, and learn how it died.

A process lives on this machine (:class:`ProcessHandle`), or where an executor has put it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from plugrl.core.plugins.user_code.error_location import TRACE, one_line
from plugrl.core.text.rollout.processes.messages import REPORTS, Setup
from plugrl.core.text.rollout.processes.process import IDLE, MARK, SHARED

#: A fresh interpreter, and not ``multiprocessing``: that would run the user's script again.
_PROGRAM = (
    "import json, sys; sys.path[:], files = json.loads(sys.argv.pop()); "
    "from plugrl.core.text.rollout.processes.process import main; main(files)"
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_PATIENCE = 2.0


class WorkerDied(Exception):
    """The process is gone; the message says how."""


class WorkerHandle(ABC):
    """One worker process, wherever it lives.

    Args:
        name: how messages call it.
        connection: to the process; its end says that the process is gone.

    Attributes:
        name: how messages call it, with its machine where that is another one.
        connection: to the process.
        ready: whether it has built its components for the last setup.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self.connection = connection
        self.ready = False
        self._setup: Setup | None = None
        self._given_up = ""

    @property
    @abstractmethod
    def running_attempt(self) -> int:
        """Which attempt's code runs, or was running when the process died; -1: none."""

    @property
    @abstractmethod
    def beats(self) -> int:
        """How many signs of life the process has given; 0: it has only begun, or was ended."""

    @property
    def place(self) -> dict[str, str]:
        """Its ``name``, ``node``, ``pid`` and ``versions``; empty: it is on this machine."""
        return {}

    @property
    def blameless(self) -> bool:
        """Whether it is gone for a reason that has nothing to do with what it did."""
        return False

    @abstractmethod
    def end(self) -> str:
        """Wait for the end of a process that is about to end, and say how it did.

        One that does not is killed; so is what a worker has started.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the process at once."""

    def hang_up(self) -> None:
        """Talk to it no more, upon which it ends."""
        with contextlib.suppress(OSError):
            self.connection.close()

    @abstractmethod
    def _kill(self) -> None:
        """End the process, and free nothing yet: other threads may call this."""

    def give_up(self, reason: str) -> None:
        """End the process, which others learn from its connection; ``reason`` says why."""
        self._given_up = reason
        self._kill()

    def send(self, *message: Any) -> None:
        """Send a message.

        Raises:
            WorkerDied: the process is gone.
        """
        try:
            self.connection.send(message)
        except OSError:
            raise WorkerDied from None

    def prepare(self, setup: Setup) -> None:
        """Have it build the components of ``setup``, unless it has them.

        Raises:
            WorkerDied: the process is gone.
        """
        if self._setup is not setup:
            self.ready = False
            self.send("setup", setup)
            self._setup = setup

    def receive(self) -> tuple[Any, ...]:
        """The next message; its log messages are passed on and not given.

        Raises:
            WorkerDied: the process is gone, or was ended because it sent something else.
        """
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerDied from None
        try:
            message: tuple[Any, ...] = pickle.loads(data)
            if message[0] not in REPORTS:
                raise ValueError(f"{message[0]!r} is none of {', '.join(REPORTS)}")
        except Exception as error:
            self.give_up(f"sent what cannot be read ({one_line(error)})")
            raise WorkerDied from None
        return message

    def log(self, name: str, level: int, text: str, trace: str) -> None:
        """Log a message of the process here, under its name."""
        logger = logging.getLogger(name)
        if not logger.isEnabledFor(level):
            return
        extra = {TRACE: trace} if trace else None
        text = f"{self.name}: {text}"
        record = logger.makeRecord(name, level, __file__, 0, text, (), None, extra=extra)
        logger.handle(record)


class ProcessHandle(WorkerHandle):
    """A worker process of this machine.

    Args:
        name: how messages call it.
        files: where folders of other machines are on this one.
    """

    def __init__(self, name: str, files: Mapping[str, str] | None = None) -> None:
        self._memory = tempfile.TemporaryFile()  # noqa: SIM115
        self._memory.write(MARK.pack(IDLE) + MARK.pack(0))
        self._memory.flush()
        self._shared = mmap.mmap(self._memory.fileno(), SHARED)
        here, there = socket.socketpair()
        super().__init__(name, Connection(here.detach()))
        descriptors = (there.fileno(), self._memory.fileno())
        # A group of its own: a signal from the terminal is for the driver, which decides, and
        # what a worker has started can be ended with it.
        paths = json.dumps([sys.path, dict(files or {})])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, descriptors), paths],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(_THREADS, "1"), "TOKENIZERS_PARALLELISM": "false"},
            process_group=0,
        )
        there.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def running_attempt(self) -> int:
        """Which attempt's code runs, or was running when the process died; -1: none."""
        number: int = MARK.unpack_from(self._shared, 0)[0]
        return number

    @property
    def beats(self) -> int:
        """How many signs of life the process has given; 0: it has only begun, or was ended."""
        with contextlib.suppress(ValueError):  # end() may be called in another thread meanwhile
            count: int = MARK.unpack_from(self._shared, MARK.size)[0]
            return count
        return 0

    def end(self) -> str:
        """Wait for its end, and say how it came; see the base class."""
        if not self._has_exited(_PATIENCE):
            self._kill()
            self._process.wait()
        code = self._process.returncode
        self._kill()
        self.hang_up()
        self._shared.close()
        self._memory.close()
        if self._given_up:
            return f"was ended because it {self._given_up}"
        if code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def kill(self) -> None:
        """End the process at once."""
        self._kill()
        self.end()

    def _has_exited(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)


def end_all(handles: Sequence[WorkerHandle]) -> None:
    """End several processes at once."""
    for handle in handles:
        handle.hang_up()
    for handle in handles:
        handle.end()
