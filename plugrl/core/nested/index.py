"""Indexing of the leading dimensions of arrays, with PyTorch's rules for mixed indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plugrl.core.nested.arrays import Array, NestedIndexError

_ALLOWED = "give integers, slices, masks, arrays of integers, ... or None"
_ALL = slice(None)


@dataclass(frozen=True)
class Index:
    """An index in two steps, because NumPy counts integers among the arrays and PyTorch does not.

    Attributes:
        first: Integers and slices, which give a view.
        second: Masks and arrays of integers for that view, or None if there are none.
        batch_size: What the index makes of the batch size.
    """

    first: tuple[Any, ...]
    second: tuple[Any, ...] | None
    batch_size: tuple[int, ...] = ()

    def get(self, array: Array) -> Array:
        """Return what is indexed: a view, or a copy where the index has arrays."""
        view: Array = array[(*self.first, ...)]
        return view if self.second is None else view[(*self.second, ...)]

    def set(self, array: Array, value: Any) -> None:
        """Write ``value`` into what is indexed."""
        if self.second is None:
            array[(*self.first, ...)] = value
        else:
            array[(*self.first, ...)][(*self.second, ...)] = value


def compiled(index: Any, batch_size: tuple[int, ...]) -> Index:
    """Check an index against a batch size.

    Raises:
        NestedIndexError: it has a part of another kind, too many parts, or leaves the batch.
    """
    given = index if isinstance(index, tuple) else (index,)
    if given and all(isinstance(part, slice) and part == _ALL for part in given):
        given = (...,)  # as [:] is of a batch size of no dimensions
    parts = [_part(part) for part in given]
    spread = _without_ellipsis(parts, batch_size)
    arrays = any(isinstance(part, (np.ndarray, np.bool_)) for part in spread)
    first: list[Any] = []
    second: list[Any] = []
    for part in spread:
        _check_mask(part, batch_size, sum(map(_dims, first)))
        if isinstance(part, int):
            first.append(part)
        elif part is None:
            (second if arrays else first).append(None)
        elif isinstance(part, slice):
            first.append(part)
            second.append(_ALL)
        elif isinstance(part, np.bool_):
            first.append(None)
            second.append(np.arange(int(part)))
        else:
            first += [_ALL] * _dims(part)
            second.append(part)
    found = Index(tuple(first), tuple(second) if arrays else None)
    try:
        shape = found.get(np.broadcast_to(np.False_, batch_size)).shape
    except IndexError as error:
        reason = " ".join(str(error).split())
        raise NestedIndexError(f"index does not fit batch size {batch_size}: {reason}") from None
    return Index(found.first, found.second, shape)


def _part(part: Any) -> Any:
    """One part of an index as None, an ellipsis, a slice, an int, a truth value or an array."""
    if part is None or part is Ellipsis:
        return part
    if isinstance(part, slice):
        if part.step is not None and part.step <= 0:
            raise NestedIndexError(f"index {part} goes backwards; its step must be positive")
        return part
    if isinstance(part, (str, float)):
        raise NestedIndexError(f"index {part!r} is a {type(part).__name__}; {_ALLOWED}")
    try:
        array = np.asarray(part)
    except (ValueError, TypeError, RuntimeError):
        array = np.asarray("no array")
    if isinstance(part, (list, range)) and array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise NestedIndexError(f"an index is a {type(part).__name__}; {_ALLOWED}")
    if array.ndim:
        return array
    return np.bool_(array[()]) if array.dtype.kind == "b" else int(array[()])


def _check_mask(part: Any, batch_size: tuple[int, ...], start: int) -> None:
    if not isinstance(part, np.ndarray) or part.dtype.kind != "b":
        return
    masked = batch_size[start : start + part.ndim]
    if part.shape != masked:
        raise NestedIndexError(
            f"a mask of shape {part.shape} is for dimensions of sizes {masked} of batch size "
            f"{batch_size}; give one of their shape"
        )


def _dims(part: Any) -> int:
    """How many dimensions a part of an index takes."""
    if part is None or part is Ellipsis or isinstance(part, np.bool_):
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1


def _without_ellipsis(parts: list[Any], batch_size: tuple[int, ...]) -> list[Any]:
    free = len(batch_size) - sum(map(_dims, parts))
    if free < 0:
        raise NestedIndexError(
            f"index takes {len(batch_size) - free} dimensions, but batch size {batch_size} has "
            f"{len(batch_size)}; index the arrays themselves beyond it"
        )
    places = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(places) > 1:
        raise NestedIndexError("index has more than one ...; give one at most")
    if not places:
        return parts
    return [*parts[: places[0]], *[_ALL] * free, *parts[places[0] + 1 :]]
