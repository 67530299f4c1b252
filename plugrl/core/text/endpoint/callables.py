"""Functions that make attempts: plain ones in a thread, ``async`` ones in the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

from plugrl.core.errors import ConfigError

#: What every function is given, and what it gets if it asks for it by name.
GIVEN = ("base_url", "api_key", "problem")
MORE = ("session", "model", "is_val")


def taken(function: Callable[..., Any], where: str) -> tuple[str, ...]:
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


async def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """The result of a function, which may be ``async``.

    A plain one runs in a daemon thread, which is left behind when this is cancelled.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await _in_thread(lambda: function(**arguments))
    return await result if inspect.isawaitable(result) else result


async def _in_thread(work: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(work)
        except BaseException as raised:
            # An exit of the function is no exit of the run.
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The loop has ended, and with it whoever wanted to know.
            return

    threading.Thread(target=run, name="plugrl-external", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error
    return value
