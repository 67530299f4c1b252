"""Time limits for each step of a user's coroutine.

Between two awaits a coroutine holds the event loop, and ``asyncio.timeout`` cannot interrupt it.
Its steps therefore run in threads that can be left behind, one at a time. The event loop waits for
each step, so to the code it looks as if it ran in the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any

from plugrl.core.text.rollout.fibers import PLAIN, Call, Overrun, in_place_of, limited_call

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
