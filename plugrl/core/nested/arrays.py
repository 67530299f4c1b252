"""The arrays that a nested dictionary holds: numbers, truth values and strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl.core.errors import UsageError

Array: TypeAlias = npt.NDArray[Any]
Path: TypeAlias = tuple[str, ...]

#: Strings of any length, and None where there is none; objects where NumPy has no such type.
STRING: Any = (
    np.dtypes.StringDType(na_object=None) if hasattr(np.dtypes, "StringDType") else np.dtype(object)
)
_HELD = "numbers, truth values, or strings (None where there is none)"
#: PyTorch's order of types: floats of any size win over integers of any size.
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 2}


class NestedKeyError(UsageError, KeyError):
    """A key of a nested dictionary is missing, taken or no key at all."""

    __str__ = UsageError.__str__


class NestedIndexError(UsageError, IndexError):
    """An index or a dimension is outside the batch size, or of a kind that has no meaning."""


class NestedShapeError(UsageError, ValueError):
    """The shape of an entry does not go with the batch size or with another entry."""


class NestedTypeError(UsageError, TypeError):
    """A value is of a type that is not held, or that the operation has no meaning for."""


def shown(path: Path) -> str:
    """Return a key as it is written in Python."""
    return repr(path[0]) if len(path) == 1 else repr(path)


def is_string(array: Array) -> bool:
    """Whether an array of a nested dictionary holds strings."""
    return bool(array.dtype == STRING)


def as_array(value: Any, path: Path) -> Array:
    """Return ``value`` as an array that can be held; arrays of numbers are not copied.

    Raises:
        NestedTypeError: it is no array of numbers, truth values or strings.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind in _RANKS or (is_string(array) and array.dtype.kind == "T"):
            return array
        if array.dtype.kind in "UTO":
            return _strings(value, array)
        raise TypeError(f"dtype {array.dtype}")
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise NestedTypeError(
            f"key {shown(path)}: {type(value).__name__} cannot be held ({reason}); give {_HELD}"
        ) from None


def _strings(value: Any, array: Array) -> Array:
    if isinstance(value, np.ndarray) and array.dtype.kind in "UT":
        return array.astype(STRING)
    # NumPy would turn the numbers of a mixed list into strings.
    objects = np.array(value, dtype=object)
    for item in objects.flat:
        if item is not None and not isinstance(item, str):
            raise TypeError(f"an entry is of type {type(item).__name__}")
        (item or "").encode()
    return objects.astype(STRING)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return an array of zeros, or of empty strings, of the type of ``like``."""
    if is_string(like):
        return np.full(shape, "", dtype=STRING)
    return np.zeros(shape, like.dtype)


def check_kinds(path: Path, arrays: Sequence[Array]) -> None:
    """Refuse strings beside numbers.

    Raises:
        NestedTypeError: some are strings, some are not.
    """
    if len({is_string(array) for array in arrays}) > 1:
        raise NestedTypeError(
            f"key {shown(path)}: strings and numbers do not mix; convert one of them with astype"
        )


def alike(path: Path, arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays in one type, which is chosen as PyTorch chooses.

    Raises:
        NestedTypeError: some are strings, some are not.
    """
    check_kinds(path, arrays)
    if is_string(arrays[0]):
        return list(arrays)
    highest = max(_RANKS[array.dtype.kind] for array in arrays)
    winners = [array.dtype for array in arrays if _RANKS[array.dtype.kind] == highest]
    dtype = np.result_type(*winners)
    return [array.astype(dtype, copy=False) for array in arrays]


def equal(left: Array, right: Any, path: Path) -> Array:
    """Compare element by element; a string is never equal to a number.

    Raises:
        NestedShapeError: the shapes do not broadcast.
    """
    other = as_array(right, path)
    try:
        shape = np.broadcast_shapes(left.shape, other.shape)
    except ValueError:
        raise NestedShapeError(
            f"key {shown(path)}: shapes {left.shape} and {other.shape} cannot be compared"
        ) from None
    if is_string(left) != is_string(other):
        return np.zeros(shape, bool)
    if is_string(left):  # as strings, NumPy takes None for an empty one
        return np.asarray(left.astype(object) == other.astype(object), dtype=bool)
    return np.asarray(left == other, dtype=bool)
