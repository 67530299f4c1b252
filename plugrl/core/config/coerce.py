"""Single values: whether they have the declared type, or can be read as it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, get_args

NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
}


class WrongType(ValueError):
    """The value is not, and cannot be read as, the declared type; the text says what is asked."""


def scalar(value: Any, kind: Any) -> Any:
    """Read ``value`` as ``kind``, one of int, float, bool, str and Path.

    Text that holds a number is one (environment variables are text); a number is text, but true
    and false are neither numbers nor text. NaN and infinities are refused.

    Raises:
        WrongType: it cannot be read as ``kind``.
    """
    asked = NAMES[kind]
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongType(f"must be {asked}, not {shown_value(value)}; use a finite number or null")
    if type(value) is kind:
        return value
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list)):
        raise WrongType(f"must be {asked}, not {shown_value(value)}")
    if isinstance(value, (int, float)) and kind is bool:
        raise WrongType(f"must be {asked}, not {shown_value(value)}")
    if isinstance(value, float) and kind is int:
        whole = f"; write {int(value)}" if value.is_integer() else ""
        raise WrongType(f"must be {asked}, not {shown_value(value)}{whole}")
    if kind is Path:
        return Path(value) if isinstance(value, str) else scalar(None, kind)
    return _converted(value, kind, asked)


def _converted(value: Any, kind: Any, asked: str) -> Any:
    from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
    from omegaconf.errors import OmegaConfBaseException

    nodes: dict[Any, Any] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}
    try:
        read = nodes[kind](value)._value()
    except (OmegaConfBaseException, ValueError, OverflowError):
        raise WrongType(f"must be {asked}, not {shown_value(value)}") from None
    if isinstance(read, float) and not math.isfinite(read):
        raise WrongType(f"must be {asked}, not {shown_value(value)}; use a finite number or null")
    return read


def whole(value: int, name: str) -> int:
    """Check the range of a whole number: what machines count with, and seeds from 0 on.

    Raises:
        WrongType: it is outside.
    """
    if name == "seed" and not 0 <= value < 2**63:
        raise WrongType(f"must be from 0 to 2^63 - 1, not {shown_value(value)}")
    if not -(2**63) <= value < 2**63:
        raise WrongType(f"must fit into 64 bits, and {shown_value(value)} does not")
    return value


def literal(value: Any, hint: Any) -> Any:
    """Check that ``value`` is one of a ``Literal``'s, of the same type.

    Raises:
        WrongType: it is not; the text lists the choices.
    """
    choices = get_args(hint)
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    listed = ", ".join(str(choice) for choice in choices)
    one_of = f"one of {listed}" if len(choices) > 1 else listed
    raise WrongType(f"must be {one_of}, not {shown_value(value)}")


def shown_value(value: Any) -> str:
    """Write a wrong value for a message, short and with its kind when that is the point."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def type_name(hint: Any) -> str:
    """Write a type hint for people: ``int | None``, ``list[str]``, ``stop, skip``."""
    if getattr(hint, "__origin__", None) is Literal:
        return ", ".join(str(choice) for choice in get_args(hint))
    if hint is None or hint is type(None):
        return "null"
    if hint is Any:
        return "any"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("None", "null")
