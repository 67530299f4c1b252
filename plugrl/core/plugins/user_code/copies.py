"""Copies of what is handed to user code, which may change what it gets."""

from __future__ import annotations

import copy
from typing import Any

#: Nobody can change them.
_FIXED = frozenset({bool, int, float, str, bytes, type(None)})


def own_copy(value: Any) -> Any:
    """``value`` with containers and arrays of its own, all the way down.

    Lists, tuples, sets and mappings that derive from ``dict`` are copied, so are arrays, tensors
    and what has a method ``copied``. Other objects are shared: nobody knows what they hold.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is list or kind is tuple:
        # Long lists of numbers, such as tokens, are not walked through one by one.
        if _FIXED.issuperset(map(type, value)):
            return kind(value)
        return kind([own_copy(each) for each in value])
    if isinstance(value, dict):
        # With its class and attributes, such as the place of a problem in its file.
        made = {} if kind is dict else copy.copy(value)
        for key, each in value.items():
            made[key] = own_copy(each)
        return made
    if kind is set:
        return set(value)
    for method in ("copied", "clone"):
        if hasattr(kind, method):
            return getattr(value, method)()
    return value.copy() if hasattr(kind, "__array__") and hasattr(kind, "copy") else value
