"""The driver's end of one worker process: start it, talk to it, and learn how it died."""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from plugrl.core.plugins.user_code.error_location import TRACE
from plugrl.core.text.rollout.processes.messages import Setup
from plugrl.core.text.rollout.processes.process import IDLE, MARK, SHARED

#: A fresh interpreter, and not ``multiprocessing``: that would run the user's script again.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from plugrl.core.text.rollout.processes.process import main; main()"
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_PATIENCE = 2.0


class WorkerDied(Exception):
    """The process is gone; the message says how."""


class WorkerHandle:
    """One worker process.

    Attributes:
        name: how messages call it.
        ready: whether it has built its components for the last setup.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = False
        self._setup: Setup | None = None
        self._memory = tempfile.TemporaryFile()  # noqa: SIM115
        self._memory.write(MARK.pack(IDLE) + MARK.pack(0))
        self._memory.flush()
        self._shared = mmap.mmap(self._memory.fileno(), SHARED)
        self._given_up = ""
        here, there = socket.socketpair()
        self.connection = Connection(here.detach())
        descriptors = (there.fileno(), self._memory.fileno())
        # A group of its own: a signal from the terminal is for the driver, which decides, and
        # what a worker has started can be ended with it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, descriptors), json.dumps(sys.path)],
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
            WorkerDied: the process is gone.
        """
        try:
            message: tuple[Any, ...] = self.connection.recv()
        except (EOFError, OSError):
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

    def end(self) -> str:
        """Wait for the end of a process that is about to end, and say how it did.

        One that does not is killed; so is what a worker has started.
        """
        if not self._has_exited(_PATIENCE):
            self._kill()
            self._process.wait()
        code = self._process.returncode
        self._kill()
        with contextlib.suppress(OSError):
            self.connection.close()
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
        with contextlib.suppress(OSError):
            handle.connection.close()
    for handle in handles:
        handle.end()
