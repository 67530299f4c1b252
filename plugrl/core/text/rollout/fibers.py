"""Plain functions that can wait: each runs in a thread, but never two of them at a time.

A plain rollout that asks a model has to stand still while other rollouts go on. It therefore runs
in a thread of its own, and the event loop stands still while it runs: the code of a worker is
never entered twice at once, and the order of everything stays the same.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import weakref
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from plugrl.core.errors import UsageError

T = TypeVar("T")
_local = threading.local()


class Overrun(Exception):
    """A plain function ran past its time limit; ``code`` names the user's code that it runs."""

    def __init__(self, code: str = "") -> None:
        super().__init__(code)
        self.code = code


class _Abandoned(BaseException):
    """Ends an abandoned thread at its next request, since Python cannot stop it from outside."""

    #: For :func:`plugrl.core.plugins.user_code.error_location.is_stop`.
    stops = True


class FiberThread(threading.Thread):
    """Runs one function after the other for the event loop that waits for it."""

    def __init__(self) -> None:
        super().__init__(name="plugrl-worker", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self.abandoned = False
        #: What messages call the code that runs, that of a part last.
        self.codes: list[Callable[[], str]] = []
        self.start()

    def run(self) -> None:
        """Call what comes, until None does or the thread is left behind."""
        _local.thread = self
        while (call := self.calls.get()) is not None:
            try:
                self.news.put(("result", call()))
            except _Abandoned:
                return
            except BaseException as error:
                self.news.put(("error", error))
            # An idle thread must not keep a task and its data alive.
            del call
            if self.abandoned:
                return

    def wait(self, awaited: Coroutine[Any, Any, T]) -> T:
        """Have the event loop await something for the function that runs here."""
        if self.abandoned:
            awaited.close()
            raise _Abandoned
        self.news.put(("await", awaited))
        good, value = self.answers.get()
        if not good:
            raise value
        answer: T = value
        return answer


def wait_for(awaited: Coroutine[Any, Any, T], instead: str) -> T:
    """Await something in a plain function that :class:`Fibers` runs; other rollouts go on.

    Args:
        awaited: what the event loop awaits.
        instead: what the caller should have written, for the message.

    Raises:
        UsageError: the caller is no plain function, or runs in another thread.
    """
    thread = getattr(_local, "thread", None)
    if thread is None:
        awaited.close()
        raise UsageError(instead)
    result: T = thread.wait(awaited)
    return result


def end_if_left_behind() -> None:
    """Stop abandoned code before it sends another request."""
    thread = threading.current_thread()
    if isinstance(thread, FiberThread) and thread.abandoned:
        raise _Abandoned


@contextmanager
def in_place_of(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Be the thread of ``loop``, which waits, for code that belongs into the event loop."""
    thread, _local.thread = getattr(_local, "thread", None), None
    before = _get_running_loop()
    _set_running_loop(loop)
    try:
        yield
    finally:
        _set_running_loop(before)
        _local.thread = thread


class Fibers:
    """Threads that are kept for the next function, for as long as this object lives."""

    def __init__(self) -> None:
        self._idle: list[FiberThread] = []
        weakref.finalize(self, _end, self._idle)

    async def run(
        self,
        function: Callable[[], T],
        seconds: float | None = None,
        held: Callable[[float], None] | None = None,
    ) -> T:
        """The result of ``function``, which may call :func:`wait_for`.

        Args:
            function: is called in a thread.
            seconds: how long it may run; the time that it waits is not counted.
            held: told how long the event loop stood still each time.

        Raises:
            Overrun: it ran longer. Its thread is left behind, since Python cannot stop it.
            BaseException: whatever the function raises.
        """
        thread = self._idle.pop() if self._idle else FiberThread()
        thread.calls.put(function)
        left = seconds
        while True:
            started = time.monotonic()
            try:
                kind, value = thread.news.get(timeout=left)
            except queue.Empty:
                thread.abandoned = True
                thread.calls.put(None)
                # Of a part that ended just now there may be none.
                code = next(iter(thread.codes[-1:]), None)
                raise Overrun(code() if code is not None else "") from None
            finally:
                spent = time.monotonic() - started
                if held is not None:
                    held(spent)
            if left is not None:
                left = max(0.0, left - spent)
            if kind != "await":
                self._idle.append(thread)
                if kind == "error":
                    raise value
                result: T = value
                return result
            try:
                thread.answers.put((True, await value))
            except asyncio.CancelledError as error:
                # The function is told; whatever it does then, nobody waits for it.
                thread.abandoned = True
                thread.answers.put((False, error))
                raise
            except BaseException as error:
                thread.answers.put((False, error))


def _end(idle: list[FiberThread]) -> None:
    for thread in idle:
        thread.calls.put(None)
