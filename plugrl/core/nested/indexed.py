"""Indexing the batch of a nested dictionary, to read and to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from plugrl.core.nested.arrays import (
    Array,
    NestedIndexError,
    NestedKeyError,
    NestedShapeError,
    Path,
    as_array,
    check_kinds,
    shown,
    zeros,
)
from plugrl.core.nested.entries import _MISSING, _Entries, is_key, path_of
from plugrl.core.nested.index import Index, compiled
from plugrl.core.nested.keyed import _Keyed, _writable
from plugrl.core.nested.shaped import _Shaped


class _Indexed(_Keyed, _Shaped):
    """Square brackets, which take keys or an index into the batch."""

    def __getitem__(self, index: Any) -> Any:
        if is_key(index):
            return self._find(path_of(index), _MISSING)
        found = self._compiled(index)
        return self._mapped(found.get, found.batch_size)

    def _compiled(self, index: Any) -> Index:
        if isinstance(index, tuple) and any(map(is_key, index)):
            raise NestedIndexError(
                f"index {index!r} mixes keys and places; index one after the other"
            )
        return compiled(index, self._batch)

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_key(index):
            self.set(index, value)
            return
        found = self._compiled(index)
        if isinstance(value, Mapping):
            value = self._of({}, found.batch_size).update(value)
        writes: list[tuple[Array, Any]] = []
        added: list[tuple[Path, Array]] = []
        if isinstance(value, _Entries):
            self._plan(found, value, writes, added)
        else:
            for path, array in self._leaves():
                writes.append(_write(found, path, array, value))
        # Nothing is written before all is known to fit.
        for array, new in writes:
            found.set(array, new)
        for path, array in added:
            self.set(path, array)

    def _plan(
        self,
        found: Index,
        value: _Entries,
        writes: list[tuple[Array, Any]],
        added: list[tuple[Path, Array]],
    ) -> None:
        if value._batch != found.batch_size:
            raise NestedShapeError(
                f"the index gives batch size {found.batch_size}, but the value has {value._batch}"
            )
        for path, new in value._leaves():
            old = self._find(path, None) if path in self else None
            if isinstance(old, _Entries):
                raise NestedKeyError(f"key {shown(path)} is nested here, but an array in the value")
            if old is None:
                self._find(path, None)  # no key goes through an array
                old = zeros(self._batch + new.shape[len(value._batch) :], new)
                added.append((path, old))
            writes.append(_write(found, path, old, new))

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Write into a part of the array at a key, and return ``self``.

        Raises:
            NestedKeyError: there is no array at the key.
            NestedIndexError: the index leaves the batch.
            NestedShapeError: the shape of ``value`` does not fit.
            NestedTypeError: one is of strings and the other is not.
        """
        path = path_of(key)
        old = self._find(path, _MISSING)
        if isinstance(old, _Entries):
            raise NestedKeyError(f"key {shown(path)} is a nested dictionary; name an array in it")
        found = self._compiled(index)
        found.set(*_write(found, path, old, value))
        return self

    def __iter__(self) -> Iterator[Self]:
        if not self._batch:
            raise NestedIndexError("batch size () has no dimension to go through")
        return iter(self.unbind(0))


def _write(found: Index, path: Path, array: Array, value: Any) -> tuple[Array, Any]:
    """An array and what to write into the indexed part of it, once they are known to fit."""
    new = as_array(value, path)
    check_kinds(path, [array, new])
    shape = found.get(_writable(path, array)).shape
    try:
        return array, np.broadcast_to(new, shape)
    except ValueError:
        raise NestedShapeError(
            f"key {shown(path)}: the index gives shape {shape}, but the value has {new.shape}"
        ) from None
