"""Single values: whether they have the declared type, or can be read as it."""

from __future__ import annotations

import math
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

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


#: Numbers as JSON and YAML 1.2 write them: ASCII digits without separators.
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*", re.ASCII)
_WHOLE = re.compile(r"\s*[-+]?\d+\s*", re.ASCII)
#: No setting is larger; what is, lost its decimal point or was meant for something else.
LARGEST = 10**12


def _converted(value: Any, kind: Any, asked: str) -> Any:
    from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
    from omegaconf.errors import OmegaConfBaseException

    pattern = {int: _WHOLE, float: _NUMBER}.get(kind)
    if isinstance(value, str) and pattern is not None and not pattern.fullmatch(value):
        raise WrongType(f"must be {asked}, not {shown_value(value)}{_in_plain_digits(value, kind)}")
    nodes: dict[Any, Any] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}
    try:
        read = nodes[kind](value)._value()
    except (OmegaConfBaseException, ValueError, OverflowError):
        raise WrongType(f"must be {asked}, not {shown_value(value)}") from None
    if isinstance(read, float) and not math.isfinite(read):
        raise WrongType(f"must be {asked}, not {shown_value(value)}; use a finite number or null")
    return read


def _in_plain_digits(text: str, kind: Any) -> str:
    """How to write what Python would read as a number: separators and other digits left out."""
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        if not math.isfinite(number):
            return "; use a finite number or null"
        whole = kind is int and number == int(number)
        return f"; write {int(number) if whole else number}" if whole or kind is float else ""
    return ""


def check_size(value: float, name: str) -> None:
    """Check the range that numbers have which no bounds of their own confine; seeds have another.

    Raises:
        WrongType: it is outside.
    """
    if name == "seed":
        if not 0 <= value < 2**63:
            raise WrongType(f"must be from 0 to 2^63 - 1, not {shown_value(value)}")
    elif abs(value) > LARGEST:
        raise WrongType(f"must be between -1e12 and 1e12, not {shown_value(value)}")


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


#: What YAML takes for one text where a key and its value are meant.
GLUED = re.compile(r"([\w.-]+):(\S.*)")


def no_mapping(value: Any) -> str:
    """What to say of a value that is no mapping; ``a:1`` would be one with a space."""
    said = f"must be a mapping, not {shown_value(value)}"
    glued = GLUED.fullmatch(value) if isinstance(value, str) else None
    return said if glued is None else f"{said}; write {glued[1]}: {glued[2]}, with a space"


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
    """Write a type hint for people: ``int | null``, ``list[str]``, ``stop, skip``."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(str(choice) for choice in inner)
    if origin in (Union, types.UnionType):
        members = [
            " | ".join(map(str, get_args(m))) if get_origin(m) is Literal else type_name(m)
            for m in inner
        ]
        return " | ".join(members)
    if hint is None or hint is type(None):
        return "null"
    if hint is Any:
        return "any"
    name = str(getattr(origin or hint, "__name__", hint))
    return f"{name}[{', '.join(map(type_name, inner))}]" if inner else name
