"""Component classes that are made of functions, so that a function can be a component."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

#: Attributes of a function that its class gets too.
_KEPT = ("Config", "conformance")
_MADE = "__plugrl_classes__"


def component_class(function: Any, plain: type, awaiting: type, parameters: Sequence[str]) -> Any:
    """The class of a function, always the same one.

    Its attributes are ``function`` and ``_parameter_count``, the number of ``parameters`` it takes.

    Args:
        function: plain or ``async``; what is no function comes back as it is.
        plain: base class for plain functions.
        awaiting: base class for ``async`` ones.
        parameters: names of what it is called with; it may leave the last one out.

    Raises:
        TypeError: the function has other parameters.
    """
    if not inspect.isfunction(function):
        return function
    made: dict[type, type] = function.__dict__.setdefault(_MADE, {})
    base = awaiting if inspect.iscoroutinefunction(function) else plain
    if base not in made:
        names = {
            "__module__": function.__module__,
            "__doc__": function.__doc__,
            "_parameter_count": _parameter_count(function, parameters),
            "function": staticmethod(function),
        }
        names |= {name: function.__dict__[name] for name in _KEPT if name in function.__dict__}
        made[base] = type(function.__name__, (base,), names)
        made[base].__qualname__ = function.__qualname__
    return made[base]


def _parameter_count(function: Callable[..., Any], parameters: Sequence[str]) -> int:
    """How many of ``parameters`` a function takes."""
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
