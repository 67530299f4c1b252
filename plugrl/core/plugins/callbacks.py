"""Callbacks: hooks of one run, given by the Python program that starts it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from plugrl.core.errors import UsageError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.wording import did_you_mean

#: The hook that a plain function is called as.
STEP = "plugrl_step_end"
#: A hook that is over when a run gets its callbacks.
_TOO_EARLY = "plugrl_register_components"
_FORMS = (
    f"write an object with methods named as hooks, such as {STEP}(self, run, step, metrics), or a "
    "function f(step, metrics)"
)


@dataclass(frozen=True, slots=True)
class Callback:
    """A callback: functions by the hooks that they are, and the arguments that each takes.

    ``by_name`` says how they take them; a plain function may call them otherwise.
    """

    name: str
    hooks: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]]
    by_name: bool = True


def runs_later(hook: Any) -> bool:
    """Whether a call of the hook runs nothing: it makes what somebody has to await or iterate."""
    kinds = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    return any(is_kind(hook) for is_kind in kinds)


def as_callbacks(callbacks: Iterable[Any]) -> list[Callback]:
    """The hooks of each callback.

    A callback is an object or a module with functions that are named as hooks are, marked with
    ``hookimpl`` or not; or a function ``f(step, metrics)``, which is called at the end of each
    step. A hook may leave out arguments.

    Raises:
        UsageError: one is none of that, or takes what the hook is not given.
    """
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise UsageError(f"callbacks must be a list, not {callbacks!r:.60}")
    return [_looked_into(value) for value in callbacks]


def _looked_into(value: Any) -> Callback:
    try:
        callback = _as_callback(value)
        for hook, (call, _) in callback.hooks.items():
            if runs_later(call):
                raise UsageError(
                    f"callback {callback.name}: {hook} is async or has a yield: calling it runs "
                    "nothing; write a plain def"
                )
        return callback
    except UsageError:
        raise
    except Exception as error:
        # An attribute may be code, which raises.
        raise UsageError(
            f"callback of type {type(value).__name__} cannot be looked into: {one_line(error)}"
        ) from error


def _as_callback(value: Any) -> Callback:
    name = _name_of(value)
    known = _arguments_of_hooks()
    if inspect.isclass(value):
        raise UsageError(f"callback {name} is a class; give an object of it, {name}()")
    if inspect.isroutine(value) and name in known:
        found = {name: value}
    else:
        found = {
            attribute: getattr(value, attribute)
            for attribute in dir(value)
            if attribute.startswith("plugrl_") and callable(getattr(value, attribute))
        }
    if not found and callable(value):
        return _step_callback(name, value)
    if not found:
        raise UsageError(f"callback {name} has no hook; {_FORMS}")
    for hook in found:
        if hook == _TOO_EARLY:
            raise UsageError(
                f"callback {name}: {hook} comes too late for a callback; register components "
                "before plugrl.train, with decorators such as plugrl.register_evaluator"
            )
        if hook not in known:
            raise UsageError(
                f"callback {name} has an unknown hook {hook}{did_you_mean(hook, sorted(known), 1)}"
            )
    return Callback(
        name,
        {hook: (call, _taken(name, hook, call, known[hook])) for hook, call in found.items()},
    )


def _step_callback(name: str, function: Any) -> Callback:
    """A plain function: it is called with what it names, or else with step and metrics."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Functions that are built in may hide their parameters.
        return Callback(name, {STEP: (function, ("step", "metrics"))}, by_name=False)
    names = [p.name for p in signature.parameters.values() if p.default is p.empty]
    if names and set(names) <= set(_arguments_of_hooks()[STEP]):
        return Callback(name, {STEP: (function, tuple(names))})
    try:
        signature.bind(0, {})
    except TypeError:
        raise UsageError(f"callback {name}{signature} has the wrong parameters; {_FORMS}") from None
    return Callback(name, {STEP: (function, ("step", "metrics"))}, by_name=False)


def _taken(
    name: str, hook: str, function: Callable[..., Any], known: tuple[str, ...]
) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        needed = parameter.default is parameter.empty
        variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.name not in known and needed and not variable:
            close = did_you_mean(parameter.name, known, 1) or f"; it has: {', '.join(known)}"
            raise UsageError(f"callback {name}: {hook} has no argument {parameter.name!r}{close}")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return known
    return tuple(p.name for p in parameters if p.name in known)


def _arguments_of_hooks() -> dict[str, tuple[str, ...]]:
    from plugrl.core.plugins import hookspecs

    return {
        name: tuple(inspect.signature(value).parameters)
        for name, value in vars(hookspecs).items()
        if name.startswith("plugrl_")
    }


def _name_of(value: Any) -> str:
    if isinstance(value, ModuleType) or hasattr(value, "__name__"):
        return str(value.__name__)
    return type(value).__name__
