"""Values on their way between processes: as data, so that none of them brings code along."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

#: How deep a value may be.
DEEPEST = 200
#: How many items of an iterator are taken.
_MOST = 10_000
#: A text, also one without an end, or a bracket; each character is looked at once.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def parse_json(text: str, deepest: int = 3 * DEEPEST) -> Any:
    """What JSON text says that a program wrote.

    Raises:
        ValueError: it is no JSON, too deep, has a key twice or a number that is too long.
    """
    depth = 0
    if text.count("[") + text.count("{") > deepest:
        for found in _BRACKETS.finditer(text):
            depth += (found[0] in "[{") - (found[0] in "]}")
            if depth > deepest:
                raise ValueError(f"more than {deepest} values in one another")
    try:
        return json.loads(text, object_pairs_hook=_object_without_duplicates)
    except RecursionError:
        raise ValueError("values too deep in one another") from None


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


#: Types that are a sequence of values, by the name that stands for them.
_SEQUENCES: dict[str, tuple[type[Iterable[Any]], Callable[[Iterable[Any]], Any]]] = {
    "tuple": (tuple, tuple),
    "set": (set, set),
    "frozenset": (frozenset, frozenset),
    "deque": (deque, deque),
}
#: Types that a text says all about.
_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, lambda value: value.hex(), bytes.fromhex),
    "bytearray": (bytearray, lambda value: value.hex(), bytearray.fromhex),
    "complex": (complex, repr, complex),
    "decimal": (Decimal, str, Decimal),
    "fraction": (Fraction, str, Fraction),
    "datetime": (datetime, lambda value: value.isoformat(), datetime.fromisoformat),
    "date": (date, lambda value: value.isoformat(), date.fromisoformat),
}


def encode(value: Any, other: Callable[[Any], Any] | None = None, depth: int = DEEPEST) -> Any:
    """A value of built-in types, and arrays of numpy, as what JSON can hold.

    Args:
        value: what is sent.
        other: gives what stands for a value of another type; None: there is nothing.
        depth: how much deeper it may go.

    Raises:
        ValueError: it is too deep, in itself, or has no end.
        TypeError: it is of another type.
    """
    if depth < 0:
        raise ValueError(f"a value is more than {DEEPEST} values deep")

    def below(values: Iterable[Any]) -> list[Any]:
        return [encode(each, other, depth - 1) for each in values]

    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return below(value)
    if isinstance(value, dict):
        return {"dict": [below((key, held)) for key, held in value.items()]}
    if isinstance(value, range):
        return {"range": [{"int": hex(n)} for n in (value.start, value.stop, value.step)]}
    for name, (cls, _) in _SEQUENCES.items():
        if isinstance(value, cls):
            return {name: below(value)}
    for name, (cls, text, _) in _TEXTS.items():
        if isinstance(value, cls):
            return {name: text(value)}
    return _encode_other(value, below, other)


def _encode_other(
    value: Any, below: Callable[[Iterable[Any]], list[Any]], other: Callable[[Any], Any] | None
) -> Any:
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        plain = below([value.tolist()])[0]
        return {"array": [plain, str(value.dtype)]} if getattr(value, "ndim", 0) else plain
    if isinstance(value, Iterator) or type(value).__name__ in ("dict_keys", "dict_values"):
        return {"iterator": below(_take(value))}
    found = other(value) if other is not None else None
    if found is None:
        raise TypeError(f"a value of type {type(value).__name__} cannot leave its process")
    return found


def _take(values: Iterable[Any]) -> Iterator[Any]:
    for count, value in enumerate(values):
        if count >= _MOST:
            raise ValueError(f"an iterator gave more than {_MOST} values")
        yield value


def decode(data: Any, other: Callable[[str, Any], Any] | None = None) -> Any:
    """The value that :func:`encode` was given.

    Args:
        data: what stood in JSON.
        other: makes a value of what another name than those of this file stands for.

    Raises:
        ValueError: it stands for nothing.
    """
    if isinstance(data, list):
        return [decode(each, other) for each in data]
    if not isinstance(data, Mapping):
        return data
    if len(data) != 1:
        raise ValueError("no value")
    ((name, held),) = data.items()
    if name == "int":
        return int(str(held), 16)
    if name in _TEXTS:
        return _TEXTS[name][2](str(held))
    if name in _SEQUENCES:
        return _SEQUENCES[name][1](_decode_list(held, other))
    if name == "dict":
        return dict(_decode_list(held, other))
    if name == "iterator":
        return iter(_decode_list(held, other))
    if name == "range":
        return range(*_decode_list(held, other))
    if name == "array":
        return _decode_array(_decode_list(held, other))
    if other is not None:
        return other(name, held)
    raise ValueError(f"no value: {name}")


def _decode_list(held: Any, other: Callable[[str, Any], Any] | None) -> list[Any]:
    if not isinstance(held, list):
        raise ValueError("no list of values")
    return [decode(each, other) for each in held]


def _decode_array(held: list[Any]) -> Any:
    plain, kind = held
    try:
        import numpy as np
    except ImportError:
        return plain
    return np.array(plain, dtype=str(kind))
