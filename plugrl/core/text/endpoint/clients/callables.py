"""Functions that make attempts: plain ones in a thread, ``async`` ones in the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from plugrl.core.errors import ConfigError

#: What every function is given, and what it gets if it asks for it by name.
GIVEN = ("base_url", "api_key", "problem")
MORE = ("session", "model", "is_val")


def accepted_arguments(function: Callable[..., Any], where: str) -> tuple[str, ...]:
    """The names of the arguments that a function takes.

    Raises:
        ConfigError: it does not take those that it is given, or wants others.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return GIVEN
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (*GIVEN, *MORE)
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    chosen = tuple(name for name in (*GIVEN, *MORE) if name in names)
    try:
        inspect.signature(function).bind(**dict.fromkeys(chosen))
        inspect.signature(function).bind(**dict.fromkeys((*GIVEN, *chosen)))
    except TypeError as error:
        raise ConfigError(
            f"{where} has the wrong parameters ({error}); write it with {', '.join(GIVEN)}, and "
            f"perhaps {', '.join(MORE)}"
        ) from None
    return chosen


class DaemonThreads(ThreadPoolExecutor):
    """A thread for each call, as many as there are, none of which holds up the end of Python.

    A function that asks from ``asyncio.to_thread`` would otherwise wait for a thread that another
    one has, which waits until all have asked.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn`` in a thread of its own."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except StopIteration as error:
                # No future may end with it.
                future.set_exception(RuntimeError(f"it raised {error!r}"))
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="plugrl-external", daemon=True).start()
        return future


async def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """The result of a function, which may be ``async``.

    A plain one runs in a daemon thread, which is left behind when this is cancelled.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(getattr(loop, "_default_executor", None), DaemonThreads):
        loop.set_default_executor(DaemonThreads(1))
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await asyncio.to_thread(function, **arguments)
    return await result if inspect.isawaitable(result) else result
