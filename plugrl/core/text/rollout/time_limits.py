"""Time limits of attempts, and event loops that close even if code in them never ends.

Code that awaits is cancelled (:class:`Clock`). Plain code cannot be, and between two awaits a
coroutine holds the event loop, where ``asyncio.timeout`` cannot interrupt it. Both therefore run in
threads that can be left behind, one at a time (:func:`call_with_limit`, :func:`run_in_steps`). The
event loop waits for each, so to the code it looks as if it ran in the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from plugrl.core.errors import RunError
from plugrl.core.text.rollout.fibers import FiberThread, Overrun, in_place_of

T = TypeVar("T")
#: Seconds that cancelled code has for its cleaning up; what goes on after it is left behind.
PATIENCE = 1.0
#: How often tasks are ended that others started when they were ended.
_ROUNDS = 5
#: What a clock without a limit does while a model is waited for.
_UNLIMITED = nullcontext()
#: What ``asyncio`` says of a loop that was stopped before its end.
_STOPPED = "Event loop stopped before Future completed."
#: What was left behind.
_left_behind: list[asyncio.Task[Any]] = []


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, also where a loop runs already, as in a notebook.

    Tasks that swallow their cancellation are left behind, where ``asyncio.run`` waits for ever.

    Raises:
        RunError: a task that a worker has started by itself called ``exit``.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(_run, coroutine).result()
    try:
        return _run(coroutine)
    except SystemExit as error:
        raise RunError(f"a task that a worker started called exit ({error})") from error
    except RuntimeError as error:
        if str(error) != _STOPPED:
            raise
        raise RunError(
            "code of a worker or evaluator stopped the event loop that it runs in; take "
            "loop.stop() out, which ends the code of all others too"
        ) from error


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    # The runner turns Ctrl-C into a cancellation; it is not closed, since that waits.
    runner = asyncio.Runner()
    loop = runner.get_loop()
    try:
        return runner.run(coroutine)
    finally:
        try:
            end_all(loop)
            _complete(loop, loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel every task of a loop that does not run; what does not end is left behind."""
    # An exit or an interrupt in one of the tasks stops the loop; the others go on to their ends.
    for _ in range(_ROUNDS):
        tasks = asyncio.all_tasks(loop) - set(_left_behind)
        if not tasks:
            return
        with suppress(SystemExit, KeyboardInterrupt):
            _complete(loop, _end(tasks))


def _complete(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run ``coroutine`` to its end in a loop that does not run.

    A wish to stop may still wait there, of somebody who did not know that the loop had stopped
    already, or of what it ran for until an interrupt; code of a worker may have one, too.
    """
    task = loop.create_task(coroutine)
    for _ in range(_ROUNDS):
        try:
            loop.run_until_complete(task)
        except RuntimeError:
            if task.done():
                raise
        else:
            return
    leave_behind(task)


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and leave behind what does not end."""
    for task in tasks:
        task.cancel()
    if tasks:
        done, going = await asyncio.wait(tasks, timeout=PATIENCE)
        for task in done:
            if not task.cancelled():
                task.exception()
        for task in going:
            leave_behind(task)


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Give up a task that does not end, without a word of ``asyncio`` about it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    _left_behind.append(task)
    # Python throws into coroutines that it collects, at its end too, when nothing that they wait
    # for works any more: one that swallows everything would never let the process end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


class Clock:
    """The time limit of one attempt; waiting for a model does not count.

    Attributes:
        abandoned: whether the code went on after it was cancelled.
        overran: what plain code of the attempt, or a step of a coroutine, was ended with.
    """

    def __init__(self, seconds: float | None) -> None:
        self._left = seconds
        self._scope: asyncio.Timeout | None = None
        self._waits = 0
        self.abandoned = False
        self.overran: Overrun | None = None

    @property
    def left(self) -> float | None:
        """Seconds that are left; None: any number."""
        scope = self._scope
        if scope is None or self._left is None or scope.when() is None:
            return self._left
        return max(0.0, (scope.when() or 0.0) - asyncio.get_running_loop().time())

    def excuse(self, seconds: float) -> None:
        """Give back time in which code of another attempt held up the event loop."""
        scope = self._scope
        if scope is not None and not scope.expired() and (when := scope.when()) is not None:
            scope.reschedule(when + seconds)

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return self._scope is not None and self._scope.expired()

    def paused(self) -> AbstractContextManager[None]:
        """Do not count while a model is waited for."""
        return _UNLIMITED if self._left is None else self._stopped()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        scope, now = self._scope, asyncio.get_running_loop().time
        if scope is None or self._left is None:
            yield
            return
        if not self._waits:
            self._left = max(0.0, (scope.when() or now()) - now())
            scope.reschedule(None)
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits and not scope.expired():
                scope.reschedule(now() + self._left)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Count again inside a :meth:`paused` block."""
        scope, now = self._scope, asyncio.get_running_loop().time
        if scope is None or self._left is None:
            yield
            return
        scope.reschedule(now() + self._left)
        try:
            yield
        finally:
            if not scope.expired():
                self._left = max(0.0, (scope.when() or now()) - now())
                scope.reschedule(None)

    async def bound(self, awaited: Awaitable[T]) -> T:
        """The result of ``awaited``, which has the time that is left.

        Code that swallows its cancellation is left behind.

        Raises:
            TimeoutError: the time was over; :attr:`abandoned` says whether it still runs.
            BaseException: whatever the code raises.
        """
        if self._left is None:
            return await awaited
        inner = asyncio.ensure_future(capture_exception(awaited))
        try:
            self._scope = asyncio.timeout(self._left)
            async with self._scope:
                # Unlike an await, this ends at once when the time is over.
                await asyncio.wait({inner})
        except TimeoutError:
            inner.cancel()
            await asyncio.wait({inner}, timeout=PATIENCE)
            self.abandoned = not inner.done()
            if self.abandoned:
                leave_behind(inner)
            elif not inner.cancelled() and isinstance(overrun := inner.result()[1], Overrun):
                # Plain code ended at the same moment, and says whose it was.
                raise overrun from None
            raise
        finally:
            inner.cancel()
        result, error = inner.result()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


class Marked:
    """Awaits something, and marks when its own code runs; the health check reads the mark."""

    def __init__(self, awaited: Awaitable[Any], mark: Callable[[int], None], number: int) -> None:
        self._awaited = awaited
        self._mark = mark
        self._number = number

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaited.__await__()
        resume, value = steps.send, None
        while True:
            self._mark(self._number)
            try:
                waits = resume(value)
            except StopIteration as stop:
                return stop.value
            finally:
                self._mark(-1)
            try:
                resume, value = steps.send, (yield waits)
            except BaseException as error:
                resume, value = steps.throw, error


async def capture_exception(awaited: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """The result, or the exception as a value: ``SystemExit`` in a task would end the loop."""
    try:
        return await awaited, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


# ------------------------------------------------------------- code that cannot be cancelled

#: Calls a function within the time that is left, and raises :class:`Overrun`.
Call = Callable[[Callable[[], Any]], Awaitable[Any]]

#: Calls plain code of an attempt that has a time limit.
PLAIN: ContextVar[Call | None] = ContextVar("plugrl_plain", default=None)


async def call_with_limit(function: Callable[[], Any], code: Callable[[], str]) -> Any:
    """Call plain code of an attempt within the time that the attempt has left.

    Raises:
        Overrun: it took longer; ``code`` says what messages call it.
        BaseException: whatever the function raises.
    """
    calls = limited_call(code)
    if calls is None:
        return function()
    try:
        return await calls(function)
    except Overrun as error:
        error.code = error.code or code()
        raise


def limited_call(code: Callable[[], str]) -> Call | None:
    """The function that calls code under the time limit; None: there is no limit.

    Args:
        code: what messages call it.
    """
    calls = PLAIN.get()
    thread = threading.current_thread()
    if calls is None or not isinstance(thread, FiberThread):
        return calls

    # It already runs in a thread whose caller holds the limit; only its name is recorded.
    async def within(function: Callable[[], Any]) -> Any:
        thread.codes.append(code)
        try:
            return function()
        finally:
            thread.codes.pop()

    return within


#: What messages call the code that runs; tasks that it starts have it too.
_CODE: ContextVar[Callable[[], str] | None] = ContextVar("plugrl_step_code", default=None)


async def run_in_steps(awaited: Awaitable[Any], code: Callable[[], str]) -> Any:
    """Await ``awaited``, with each of its steps within the time that the attempt has left.

    Args:
        awaited: such as a coroutine of an evaluator.
        code: what messages call it.

    Raises:
        Overrun: a step took longer.
        BaseException: whatever the code raises.
    """
    if PLAIN.get() is None:
        return await awaited
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_make_task)
    return await _run_with_limit(awaited, code)


class _Steps:
    """Awaits something whose code runs in threads."""

    def __init__(self, awaited: Awaitable[Any], calls: Call, code: Callable[[], str]) -> None:
        self._awaited = awaited
        self._calls = calls
        self._code = code

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaited.__await__()
        loop = asyncio.get_running_loop()
        # One context for all steps: context variables that the code sets must survive an await.
        context = contextvars.copy_context()
        context.run(_CODE.set, self._code)
        resume, value = steps.send, None

        def step() -> tuple[bool, Any]:
            with in_place_of(loop):
                try:
                    return False, context.run(resume, value)
                except StopIteration as stop:
                    return True, stop.value

        while True:
            ended, found = yield from self._calls(step).__await__()
            if ended:
                return found
            try:
                resume, value = steps.send, (yield found)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                resume, value = steps.throw, error


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
) -> asyncio.Task[Any]:
    code = _CODE.get()
    if code is not None and inspect.iscoroutine(coroutine):
        coroutine = _run_with_limit(coroutine, code)
    return asyncio.Task(coroutine, loop=loop, **options)


async def _run_with_limit(awaited: Awaitable[Any], code: Callable[[], str]) -> Any:
    calls = limited_call(code)
    if calls is None:
        return await awaited
    try:
        return await _Steps(awaited, calls, code)
    except Overrun as error:
        error.code = error.code or code()
        raise
