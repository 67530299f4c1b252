"""Functions of the arrays of nested dictionaries: copies, comparisons, any function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from plugrl.core.nested.arrays import (
    NestedKeyError,
    NestedShapeError,
    NestedTypeError,
    Path,
    equal,
    is_string,
    shown,
)
from plugrl.core.nested.entries import _MISSING, _Entries, sizes_of
from plugrl.core.nested.keyed import _Keyed
from plugrl.core.nested.shaped import _Shaped


class _Computed(_Keyed, _Shaped):
    """What is worked out array by array."""

    __hash__ = None  # type: ignore[assignment]

    def apply(
        self,
        function: Callable[..., Any],
        *others: Any,
        batch_size: int | Sequence[int] | None = None,
        default: Any = _MISSING,
        filter_empty: bool = False,
    ) -> Self:
        """Return what a function makes of every array.

        Args:
            function: Gets an array, and those at the same key of ``others``. None leaves it out.
            others: Nested dictionaries with the same keys.
            batch_size: The new batch size, of nested ones too; as it is by default.
            default: What stands for an array that one of the others has not.
            filter_empty: Leave nested dictionaries out that hold no array afterwards.

        Raises:
            NestedKeyError: an array is missing, and there is no default.
            NestedShapeError: a result does not begin with the batch size.
        """
        batch = None if batch_size is None else sizes_of(batch_size)
        return self._applied(function, others, batch, default, filter_empty, ())

    def _applied(
        self,
        function: Callable[..., Any],
        others: Sequence[Any],
        batch: tuple[int, ...] | None,
        default: Any,
        filter_empty: bool,
        above: Path,
    ) -> Self:
        new = self._of({}, self._batch if batch is None else batch)
        for key, value in self._entries.items():
            path = (*above, key)
            if isinstance(value, _Computed):
                inner = value._applied(function, others, batch, default, filter_empty, path)
                if not (filter_empty and inner.is_empty()):
                    new._entries[key] = inner
                continue
            result = function(value, *(other._find(path, default) for other in others))
            if result is not None:
                new._entries[key] = new._checked(result, path)
        return new

    def copy(self) -> Self:
        """Return another nested dictionary of the same arrays."""
        return self._mapped(lambda array: array, self._batch)

    def clone(self, recurse: bool = True) -> Self:
        """Return another nested dictionary of copies of the arrays, or of the same ones."""
        return self._mapped(np.copy if recurse else lambda array: array, self._batch)

    __copy__ = copy

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._compared(other, False, ())

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._compared(other, True, ())

    def _compared(self, other: Any, unequal: bool, above: Path) -> Self:
        several = isinstance(other, (Mapping, _Entries))
        others = other._entries if isinstance(other, _Entries) else other
        entries: dict[str, Any] = {}
        if several:
            differing = sorted(self._entries.keys() ^ others.keys(), key=str)
            if differing:
                raise NestedKeyError(f"key {shown((*above, differing[0]))} is on one side only")
        if not above and isinstance(other, _Entries) and other._batch != self._batch:
            raise NestedShapeError(f"batch sizes {self._batch} and {other._batch} differ")
        for key, value in self._entries.items():
            path = (*above, key)
            theirs = others[key] if several else other
            if isinstance(value, _Computed):
                entries[key] = value._compared(theirs, unequal, path)
            elif isinstance(theirs, (Mapping, _Entries)):
                raise NestedKeyError(
                    f"key {shown(path)} is an array on one side, nested on the other"
                )
            else:
                entries[key] = equal(value, theirs, path) ^ unequal
        return self._of({}, self._batch).update(entries)

    def all(self, dim: int | None = None) -> Any:
        """Return whether all elements are true: one truth value, or along a dimension.

        Raises:
            NestedIndexError: there is no such dimension.
            NestedTypeError: an entry is of strings.
        """
        return self._reduced(np.all, dim, all)

    def any(self, dim: int | None = None) -> Any:
        """Return whether any element is true: one truth value, or along a dimension.

        Raises:
            NestedIndexError: there is no such dimension.
            NestedTypeError: an entry is of strings.
        """
        return self._reduced(np.any, dim, any)

    def _reduced(self, function: Any, dim: int | None, whole: Any) -> Any:
        for path, array in self._leaves():
            if is_string(array):
                raise NestedTypeError(f"key {shown(path)} is of strings, neither true nor false")
        if dim is None:
            return whole(bool(function(array)) for _, array in self._leaves())
        axis = self._dim(dim)
        batch = self._batch[:axis] + self._batch[axis + 1 :]
        return self._mapped(lambda array: np.asarray(function(array, axis=axis)), batch)
