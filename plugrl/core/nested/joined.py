"""Stacking and concatenating nested dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from plugrl.core.nested.arrays import (
    Array,
    NestedIndexError,
    NestedKeyError,
    NestedShapeError,
    NestedTypeError,
    Path,
    alike,
    shown,
)
from plugrl.core.nested.entries import _Entries

Tree = TypeVar("Tree", bound=_Entries)
Join = Callable[[list[Array]], Array]


def stack(items: Sequence[Tree], dim: int = 0) -> Tree:
    """Return nested dictionaries of one batch size as one, along a new dimension.

    Raises:
        NestedIndexError: the dimension is outside the batch size.
        NestedKeyError: the keys differ.
        NestedShapeError: batch sizes or shapes differ, or there is nothing to stack.
        NestedTypeError: an entry is of strings in one and of numbers in another.
    """
    first = _first(items, "stack")
    dims = len(first._batch) + 1
    axis = _axis(dim, dims, first._batch)
    for i, item in enumerate(items):
        if item._batch != first._batch:
            raise NestedShapeError(
                f"stack needs equal batch sizes, but 0 has {first._batch} and {i} has {item._batch}"
            )
    batch = (*first._batch[:axis], len(items), *first._batch[axis:])
    return _merged(items, lambda arrays: np.stack(arrays, axis), None, batch, ())


def concatenate(items: Sequence[Tree], dim: int = 0) -> Tree:
    """Return nested dictionaries as one, along a dimension that they have.

    Raises:
        NestedIndexError: there is no such dimension.
        NestedKeyError: the keys differ.
        NestedShapeError: sizes of other dimensions differ, or there is nothing to concatenate.
        NestedTypeError: an entry is of strings in one and of numbers in another.
    """
    first = _first(items, "concatenate")
    axis = _axis(dim, len(first._batch), first._batch)
    rest = _without(first._batch, axis)
    for i, item in enumerate(items):
        if len(item._batch) != len(first._batch) or _without(item._batch, axis) != rest:
            raise NestedShapeError(
                f"concatenate needs equal batch sizes but for dimension {axis}; 0 has "
                f"{first._batch} and {i} has {item._batch}"
            )
    total = sum(item._batch[axis] for item in items)
    batch = (*first._batch[:axis], total, *first._batch[axis + 1 :])
    return _merged(items, lambda arrays: np.concatenate(arrays, axis), axis, batch, ())


def _first(items: Sequence[Tree], what: str) -> Tree:
    if not len(items):
        raise NestedShapeError(f"{what} got nothing; give one nested dictionary or more")
    for item in items:
        if not isinstance(item, _Entries):
            raise NestedTypeError(
                f"{what} got a {type(item).__name__}; give NestedArrayDicts alone"
            )
    return items[0]


def _axis(dim: int, dims: int, batch: tuple[int, ...]) -> int:
    if not -dims <= dim < dims:
        have = f"give {-dims} to {dims - 1}" if dims else "it has none"
        raise NestedIndexError(f"dimension {dim} is not of batch size {batch}; {have}")
    return dim % dims


def _without(sizes: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return sizes if axis is None else sizes[:axis] + sizes[axis + 1 :]


def _merged(
    nodes: Sequence[Tree], join: Join, axis: int | None, batch: tuple[int, ...], above: Path
) -> Tree:
    """Merge nodes of one place key by key; sizes may differ along ``axis`` only."""
    first = nodes[0]
    for i, node in enumerate(nodes):
        differing = sorted(first._entries.keys() ^ node._entries.keys())
        if differing:
            owner = 0 if differing[0] in first._entries else i
            raise NestedKeyError(
                f"key {shown((*above, differing[0]))} is in {owner} but not in {i - owner}; "
                "select the keys that all have"
            )
    entries: dict[str, Any] = {}
    for key in first._entries:
        path = (*above, key)
        values = [node._entries[key] for node in nodes]
        nested = [isinstance(value, _Entries) for value in values]
        if any(nested) != all(nested):
            raise NestedKeyError(f"key {shown(path)} is an array in one and nested in another")
        shapes = [value.shape for value in values]
        for i, shape in enumerate(shapes):
            if _without(shape, axis) != _without(shapes[0], axis):
                raise NestedShapeError(
                    f"key {shown(path)} has shape {shapes[0]} in 0, {shape} in {i}"
                )
        if all(nested):
            tail = values[0]._batch[len(first._batch) :]
            entries[key] = _merged(values, join, axis, batch + tail, path)
        else:
            entries[key] = join(alike(path, values))
    return first._of(entries, batch)
