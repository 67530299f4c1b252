"""Copies of arguments for user code, which may modify them."""

from __future__ import annotations

import copy
from typing import Any

#: Immutable types, which need no copy.
_FIXED = frozenset({bool, int, float, str, bytes, type(None)})


def own_copy(value: Any) -> Any:
    """A recursive copy of the containers, arrays and tensors in ``value``.

    Lists, tuples, sets and subclasses of ``dict`` are copied, and so are arrays, tensors and
    objects with a method ``clone``. Other objects are shared, because nothing is known about them.
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
        # Keeps its class and attributes, such as the line of a problem in its file.
        made = {} if kind is dict else copy.copy(value)
        for key, each in value.items():
            made[key] = own_copy(each)
        return made
    if kind is set:
        return set(value)
    if hasattr(kind, "clone"):
        return value.clone()
    return value.copy() if hasattr(kind, "__array__") and hasattr(kind, "copy") else value
