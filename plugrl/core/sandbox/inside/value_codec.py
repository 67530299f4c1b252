"""Encodes values as JSON between processes, so that no value brings code along."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

#: The maximum nesting depth of a value.
DEEPEST = 200
#: The maximum number of items of an iterator.
_MOST = 10_000
#: A string, even an unterminated one, or a bracket; scans each character once.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def parse_json(text: str, deepest: int = 3 * DEEPEST) -> Any:
    """Parse untrusted JSON.

    Raises:
        ValueError: it is not JSON, nested too deeply, or has a duplicate key or a huge number.
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
        raise ValueError("an object has a duplicate key")
    return found


#: Types of collections, by their names in the encoding.
_SEQUENCES: dict[str, tuple[type[Iterable[Any]], Callable[[Iterable[Any]], Any]]] = {
    "tuple": (tuple, tuple),
    "set": (set, set),
    "frozenset": (frozenset, frozenset),
    "deque": (deque, deque),
}
#: Types that are encoded as strings.
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
    """Encode a value of built-in types, or a numpy array, as JSON values.

    Args:
        value: the value.
        other: encodes values of other types; returns None for those it does not know.
        depth: the remaining nesting depth.

    Raises:
        ValueError: the value is nested too deeply, contains itself, or is an endless iterator.
        TypeError: a type cannot be encoded.
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
    """Decode a value that :func:`encode` encoded.

    Args:
        data: the JSON values.
        other: decodes types that this module does not know, from their name and content.

    Raises:
        ValueError: ``data`` is not a valid encoding.
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
