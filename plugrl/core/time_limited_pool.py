"""Time limits that hold: functions run in worker processes, which the kernel ends.

Python cannot interrupt a function that is busy in C code, and alarms only reach the main thread.
A worker process therefore imports the function, answers call after call, and sets a timer of
processor time before each; when it fires, the process dies and the next call starts another. Limits
count processor time, so that a busy machine does not change the result of a call.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import IO, Any, cast

_SIZE = struct.Struct("<q")
#: Seconds that a worker may take to import its function.
START = 120.0
#: The limit in wall-clock time, as a multiple of the limit in processor time.
PATIENCE = 20.0


class LimitExceededError(Exception):
    """A call exceeded its time limit; its worker was ended."""


class CallFailedError(Exception):
    """A function raised, or its worker died; the message says how."""


class TimeLimitedPool:
    """Calls one function in worker processes; safe to use from several threads and event loops.

    Args:
        target: ``module:function``; arguments are pickled, the result must be JSON.
        seconds: processor time of one call.
        memory: bytes of address space of a worker.
        helpers: calls that run at the same time; by default the number of processors, at most four.
    """

    def __init__(
        self, target: str, *, seconds: float, memory: int = 4 << 30, helpers: int | None = None
    ) -> None:
        self._target = target
        self._seconds = seconds
        self._memory = memory
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._count = helpers or min(4, os.cpu_count() or 1)
        weakref.finalize(self, _close, self._idle)

    def call(self, *arguments: Any) -> Any:
        """Call the function and return its result.

        Raises:
            LimitExceededError: it took too long.
            CallFailedError: it raised, needs too much memory, or crashed.
        """
        with self._lock:
            helper = self._idle.pop() if self._idle else None
        helper = helper or _Worker(self._target, self._seconds, self._memory)
        try:
            good, value, leaves = helper.call(arguments)
        except BaseException:
            helper.close()
            raise
        if leaves:
            helper.close()
        else:
            with self._lock:
                self._idle.append(helper)
        if not good:
            raise CallFailedError(value)
        return value

    async def __call__(self, *arguments: Any) -> Any:
        """:meth:`call` while others go on; the errors are the same."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._count, "plugrl-limited")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self.call, *arguments
        )


@lru_cache(maxsize=32)
def shared_pool(target: str, seconds: float) -> TimeLimitedPool:
    """The pool for ``target`` with that limit, shared by the evaluators of a process.

    Its workers have imported what the function needs, which may take seconds.
    """
    return TimeLimitedPool(target, seconds=seconds)


class _Worker:
    def __init__(self, target: str, seconds: float, memory: int) -> None:
        self._seconds = seconds
        command = [
            sys.executable,
            "-m",
            "plugrl.core.time_limited_pool",
            target,
            str(seconds),
            str(memory),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            good, value, _ = json.loads(self._read(START))
            if not good:
                raise CallFailedError(value)
        except BaseException:
            self.close()
            raise

    def call(self, arguments: tuple[Any, ...]) -> tuple[bool, Any, bool]:
        data = pickle.dumps(arguments)
        try:
            _write(cast("IO[bytes]", self._process.stdin), data)
        except OSError as error:
            raise CallFailedError(f"the helper of {self._process.args!r} is gone") from error
        good, value, leaves = json.loads(self._read(self._seconds * PATIENCE + 5))
        return good, value, leaves

    def _read(self, seconds: float) -> bytes:
        out = cast("IO[bytes]", self._process.stdout)
        deadline = time.monotonic() + seconds
        data = b""
        while len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise LimitExceededError(f"no answer within {seconds:g} seconds")
            part = os.read(out.fileno(), 1 << 20)
            if not part:
                raise self._exit_error()
            data += part
        return data[_SIZE.size :]

    def _exit_error(self) -> Exception:
        code = self._process.wait()
        if code == -signal.SIGPROF:
            return LimitExceededError(f"more than {self._seconds:g} seconds of processor time")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return CallFailedError(f"the process of the call ended with {how}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _close(idle: list[_Worker]) -> None:
    for helper in idle:
        helper.close()


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_SIZE.pack(len(data)) + data)
    pipe.flush()


def main() -> None:
    """Run a worker; its arguments are the target, the seconds and the bytes of memory."""
    import importlib
    import resource

    target, seconds, memory = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The function must neither print into the answers nor read the requests.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        _reply(answers, False, f"{type(error).__name__}: {error}", True)
        return
    # Set after the imports, so that these are not limited.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # A stop that is sent to the whole group is for the parent, which still needs its answers.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    _reply(answers, True, None, False)
    while len(head := requests.read(_SIZE.size)) == _SIZE.size:
        data = requests.read(_SIZE.unpack(head)[0])
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            value = function(*pickle.loads(data))
            json.dumps(value)
            good, leaves = True, False
        except MemoryError:
            good, value, leaves = False, f"more than {memory >> 20} MiB of memory", True
        except BaseException as error:
            good, value, leaves = False, f"{type(error).__name__}: {error}", False
        _reply(answers, good, value, leaves)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _reply(answers: IO[bytes], good: bool, value: Any, leaves: bool) -> None:
    _write(answers, json.dumps([good, value, leaves]).encode())


if __name__ == "__main__":
    main()
