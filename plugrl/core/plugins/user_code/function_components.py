"""Turns functions into component classes, so that a function can be a component."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

#: Attributes of a function that its class inherits.
_KEPT = ("Config", "conformance")
_MADE = "__plugrl_classes__"


def component_class(function: Any, plain: type, awaiting: type, parameters: Sequence[str]) -> Any:
    """The component class of a function; the same class for every call.

    Its attributes are ``function`` and ``_parameter_count``, the number of ``parameters`` it takes.

    Args:
        function: a plain or ``async`` function; anything else is returned unchanged.
        plain: base class for plain functions.
        awaiting: base class for ``async`` ones.
        parameters: names of the arguments that it is called with; the last one is optional.

    Raises:
        TypeError: the function has other parameters.
    """
    if not inspect.isfunction(function):
        return function
    base = awaiting if inspect.iscoroutinefunction(function) else plain
    return class_of(function, base, _parameter_count=_parameter_count(function, parameters))


def class_of(function: Any, base: type, **attributes: Any) -> type:
    """The subclass of ``base`` whose attribute ``function`` is this function.

    It is called as the function is, and is the same class for every call.
    """
    made: dict[type, type] = function.__dict__.setdefault(_MADE, {})
    if base not in made:
        names = {
            "__module__": function.__module__,
            "__doc__": function.__doc__,
            "function": staticmethod(function),
            **attributes,
        }
        names |= {name: function.__dict__[name] for name in _KEPT if name in function.__dict__}
        made[base] = type(function.__name__, (base,), names)
        made[base].__qualname__ = function.__qualname__
    return made[base]


def _parameter_count(function: Callable[..., Any], parameters: Sequence[str]) -> int:
    """The number of ``parameters`` that a function takes."""
    for count in (len(parameters), len(parameters) - 1):
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError:
            continue
        return count
    name = function.__name__
    raise TypeError(
        f"{name}{inspect.signature(function)} has the wrong parameters; write "
        f"{name}({', '.join(parameters[:-1])}) or {name}({', '.join(parameters)})"
    )
