"""The tree of a nested dictionary: its batch size, its keys and what they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from plugrl.core.nested.arrays import (
    Array,
    NestedKeyError,
    NestedShapeError,
    NestedTypeError,
    Path,
    as_array,
    shown,
)


class _Missing:
    """Stands for no default."""

    def __repr__(self) -> str:
        return "MISSING"  # one that is the same in every process, for the reference


_MISSING: Any = _Missing()


def path_of(key: Any) -> Path:
    """Return a key as a tuple of strings; tuples inside it are flattened.

    Raises:
        NestedKeyError: it is neither a string nor a tuple of keys.
    """
    if isinstance(key, str):
        return (key,)
    if not is_key(key):
        raise NestedKeyError(f"{key!r} is no key; give a string or a tuple of strings")
    return tuple(word for part in key for word in path_of(part))


def is_key(key: Any) -> bool:
    """Whether ``key`` names an entry rather than a part of the batch."""
    return isinstance(key, str) or (isinstance(key, tuple) and bool(key) and all(map(is_key, key)))


def sizes_of(sizes: Any) -> tuple[int, ...]:
    """Return a batch size as a tuple: a whole number stands for one dimension."""
    return tuple(map(int, sizes)) if isinstance(sizes, Sequence) else (int(sizes),)


class _Entries:
    """Entries by key, and the batch size that all their shapes begin with."""

    _entries: dict[str, Any]
    _batch: tuple[int, ...]

    @classmethod
    def _of(cls, entries: dict[str, Any], batch: tuple[int, ...]) -> Self:
        """Build without checks."""
        new = cls.__new__(cls)
        new._entries = entries
        new._batch = batch
        return new

    def _mapped(self, change: Callable[[Array], Array], batch: tuple[int, ...]) -> Self:
        """Change every array; ``batch`` replaces the batch size, here and within nested ones."""
        known = len(self._batch)

        def node(old: Self) -> Self:
            entries = {
                key: node(value) if isinstance(value, _Entries) else change(value)
                for key, value in old._entries.items()
            }
            return self._of(entries, batch + old._batch[known:])

        return node(self)

    @property
    def batch_size(self) -> tuple[int, ...]:
        """The leading dimensions that all entries share; it can be set to what they have.

        Raises:
            NestedShapeError: an entry has other leading dimensions.
        """
        return self._batch

    @batch_size.setter
    def batch_size(self, sizes: int | Sequence[int]) -> None:
        batch = sizes_of(sizes)
        for path, array in self._leaves():
            if array.shape[: len(batch)] != batch:
                raise _misfit(path, array.shape, batch)
        self._resize(batch)

    def _resize(self, batch: tuple[int, ...]) -> None:
        self._batch = batch
        for value in self._entries.values():
            if isinstance(value, _Entries) and value._batch[: len(batch)] != batch:
                value._resize(batch)

    def _leaves(self, above: Path = ()) -> Iterator[tuple[Path, Array]]:
        for key, value in self._entries.items():
            if isinstance(value, _Entries):
                yield from value._leaves((*above, key))
            else:
                yield (*above, key), value

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch size."""
        return self._batch

    @property
    def batch_dims(self) -> int:
        """The number of dimensions of the batch size."""
        return len(self._batch)

    @property
    def ndim(self) -> int:
        """The number of dimensions of the batch size."""
        return len(self._batch)

    def numel(self) -> int:
        """Return the number of elements of the batch."""
        return math.prod(self._batch)

    def is_empty(self) -> bool:
        """Return whether there is no array at any depth."""
        return next(self._leaves(), None) is None

    def __len__(self) -> int:
        return self._batch[0] if self._batch else 0

    def __bool__(self) -> bool:
        raise NestedTypeError(
            "a nested dictionary is neither true nor false; use is_empty(), len(), all() or any()"
        )

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the array or the nested dictionary at a key, or ``default``.

        Raises:
            NestedKeyError: ``key`` is no key, or goes through an array.
        """
        return self._find(path_of(key), default)

    def _find(self, path: Path, default: Any) -> Any:
        found: Any = self
        for i, word in enumerate(path):
            if not isinstance(found, _Entries):
                raise _through(path, path[:i], found)
            if word not in found._entries:
                if default is not _MISSING:
                    return default
                raise found._unknown(path, path[:i])
            found = found._entries[word]
        return found

    def _unknown(self, path: Path, above: Path) -> NestedKeyError:
        there = ", ".join(map(repr, self._entries)) or "no keys"
        place = f"under {shown(above)}" if above else "it"
        return NestedKeyError(f"no key {shown(path)}; {place} has {there}")

    def __contains__(self, key: Any) -> bool:
        found: Any = self
        for word in path_of(key):
            if not isinstance(found, _Entries) or word not in found._entries:
                return False
            found = found._entries[word]
        return True

    def set(self, key: Any, value: Any) -> Self:
        """Put an array, a nested dictionary or a mapping at a key, and return ``self``.

        Nested dictionaries above it are made as needed. Arrays are kept, not copied; the shape
        of each must begin with the batch size.

        Raises:
            NestedKeyError: ``key`` is no key, or goes through an array.
            NestedShapeError: a shape does not begin with the batch size.
            NestedTypeError: a value is not of numbers, truth values or strings.
        """
        self._put(path_of(key), value, ())
        return self

    def _put(self, path: Path, value: Any, above: Path) -> None:
        node: Any = self
        depth = 0
        while depth < len(path) - 1 and path[depth] in node._entries:
            inner = node._entries[path[depth]]
            depth += 1
            if not isinstance(inner, _Entries):
                raise _through((*above, *path), (*above, *path[:depth]), inner)
            node = inner
        checked = node._checked(value, (*above, *path))
        if isinstance(checked, _Entries) and checked._holds(node):
            raise NestedKeyError(f"key {shown((*above, *path))}: it would hold itself; copy it")
        for word in path[depth:-1]:
            node._entries[word] = self._of({}, node._batch)
            node = node._entries[word]
        node._entries[path[-1]] = checked

    def _holds(self, other: Any) -> bool:
        inner = [value for value in self._entries.values() if isinstance(value, _Entries)]
        return self is other or any(value._holds(other) for value in inner)

    def _checked(self, value: Any, path: Path) -> Any:
        """``value`` as an entry of this node."""
        batch = self._batch
        if isinstance(value, _Entries):
            if value._batch[: len(batch)] == batch:
                return value
            for inner, array in value._leaves(path):
                if array.shape[: len(batch)] != batch:
                    raise _misfit(inner, array.shape, batch)
            copy = value._mapped(lambda array: array, value._batch)
            copy._resize(batch)
            return copy
        if isinstance(value, Mapping):
            node = self._of({}, batch)
            for key, inner in value.items():
                node._put(path_of(key), inner, path)
            return node
        array = as_array(value, path)
        if array.shape[: len(batch)] != batch:
            raise _misfit(path, array.shape, batch)
        return array


def _misfit(path: Path, shape: tuple[int, ...], batch: tuple[int, ...]) -> NestedShapeError:
    return NestedShapeError(
        f"key {shown(path)} has shape {shape}, but its first dimensions must be the batch size "
        f"{batch}"
    )


def _through(path: Path, above: Path, array: Array) -> NestedKeyError:
    return NestedKeyError(
        f"no key {shown(path)}: {shown(above)} is an array of shape {array.shape}, not a nested "
        "dictionary"
    )
