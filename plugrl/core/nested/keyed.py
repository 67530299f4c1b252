"""What a nested dictionary does by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from plugrl.core.errors import UsageError
from plugrl.core.nested.arrays import (
    NestedKeyError,
    NestedShapeError,
    NestedTypeError,
    Path,
    check_kinds,
    shown,
)
from plugrl.core.nested.entries import _MISSING, _Entries, path_of


class _Keyed(_Entries):
    """Reading, changing and choosing entries by key."""

    def _walk(self, nested: bool, leaves_only: bool, above: Path) -> Iterator[tuple[Path, Any]]:
        for key, value in self._entries.items():
            path = (*above, key)
            if not isinstance(value, _Keyed):
                yield path, value
                continue
            if nested:
                yield from value._walk(nested, leaves_only, path)
            if not leaves_only:
                yield path, value

    def items(
        self, include_nested: bool = False, leaves_only: bool = False
    ) -> list[tuple[Any, Any]]:
        """Return keys with their entries.

        Args:
            include_nested: With the entries of nested dictionaries, whose keys are tuples.
            leaves_only: Without the nested dictionaries themselves.
        """
        walk = self._walk(include_nested, leaves_only, ())
        return [(path[0] if len(path) == 1 else path, value) for path, value in walk]

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the keys of :meth:`items`."""
        return [key for key, _ in self.items(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the entries of :meth:`items`."""
        return [value for _, value in self.items(include_nested, leaves_only)]

    def set_(self, key: Any, value: Any) -> Self:
        """Write into the array at a key, which keeps its type, and return ``self``.

        Raises:
            NestedKeyError: there is no array at the key.
            NestedShapeError: ``value`` has another shape.
            NestedTypeError: one is of strings and the other is not, or the array is read-only.
        """
        path = path_of(key)
        old = self._find(path, _MISSING)
        if isinstance(old, _Entries):
            raise NestedKeyError(f"key {shown(path)} is a nested dictionary; name an array in it")
        new = self._checked(value, path)
        shape = getattr(new, "shape", None)
        if isinstance(new, _Entries) or shape != old.shape:
            raise NestedShapeError(
                f"key {shown(path)} has shape {old.shape}, but the value has {shape}; use set"
            )
        check_kinds(path, [old, new])
        _writable(path, old)[...] = new
        return self

    def update(self, other: Any) -> Self:
        """Put all entries of a mapping or nested dictionary here, and return ``self``.

        Nested dictionaries on both sides are merged; all else is replaced.

        Raises:
            NestedKeyError, NestedShapeError, NestedTypeError: as :meth:`set` does.
        """
        self._merge(other, ())
        return self

    def _merge(self, other: Any, above: Path) -> None:
        for key, value in list(other.items()):
            path = path_of(key)
            old = self._find(path, None) if path in self else None
            if isinstance(old, _Keyed) and isinstance(value, (Mapping, _Entries)):
                old._merge(value, (*above, *path))
            else:
                self._put(path, value, above)

    def del_(self, key: Any) -> Self:
        """Take the entry at a key out, and return ``self``.

        Raises:
            NestedKeyError: there is none.
        """
        path = path_of(key)
        self._find(path, _MISSING)
        holder = self._find(path[:-1], _MISSING)
        del holder._entries[path[-1]]
        return self

    def __delitem__(self, key: Any) -> None:
        self.del_(key)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Take the entry at a key out and return it, or ``default`` where there is none.

        Raises:
            NestedKeyError: there is none, and no default.
        """
        found = self._find(path_of(key), default)
        if key in self:
            self.del_(key)
        return found

    def setdefault(self, key: Any, default: Any) -> Any:
        """Return the entry at a key, which is ``default`` from now on if there was none."""
        if key not in self:
            self.set(key, default)
        return self.get(key)

    def rename_key_(self, old: Any, new: Any) -> Self:
        """Move an entry to another key, and return ``self``.

        Raises:
            NestedKeyError: there is no ``old``, or ``new`` goes through an array.
        """
        path = path_of(old)
        value = self._find(path, _MISSING)
        self.del_(path)
        try:
            self._put(path_of(new), value, ())
        except UsageError:
            self._put(path, value, ())
            raise
        return self

    def select(self, *keys: Any, strict: bool = True) -> Self:
        """Return a nested dictionary of these entries alone, which shares their arrays.

        Args:
            keys: What to keep: arrays, or nested dictionaries with all that they hold.
            strict: Whether a missing key is an error.

        Raises:
            NestedKeyError: a key is missing.
        """
        return self._select([path_of(key) for key in keys], strict, ())

    def _select(self, paths: list[Path], strict: bool, above: Path) -> Self:
        entries: dict[str, Any] = {}
        deeper: dict[str, list[Path]] = {}
        for path in paths:
            found = self._find(path[:1], _MISSING if strict else None)
            if found is None:
                continue
            entries[path[0]] = found
            if path[1:]:
                # It is found, or the error names the whole key.
                if strict or not isinstance(found, _Entries):
                    self._find(path, _MISSING)
                deeper.setdefault(path[0], []).append(path[1:])
        for key, inner in deeper.items():
            entries[key] = entries[key]._select(inner, strict, (*above, key))
        return self._of(entries, self._batch)

    def exclude(self, *keys: Any) -> Self:
        """Return a nested dictionary without these entries; keys that are missing do no harm."""
        return self._exclude({path_of(key) for key in keys})

    def _exclude(self, paths: set[Path]) -> Self:
        entries = {}
        for key, value in self._entries.items():
            if (key,) in paths:
                continue
            inner = {path[1:] for path in paths if path[0] == key}
            deep = inner and isinstance(value, _Keyed)
            entries[key] = value._exclude(inner) if deep else value
        return self._of(entries, self._batch)

    def empty(self) -> Self:
        """Return a nested dictionary of this batch size without entries."""
        return self._of({}, self._batch)

    def flatten_keys(self, separator: str = ".") -> Self:
        """Return the arrays under keys of one string each: words joined by ``separator``.

        Raises:
            NestedKeyError: two arrays would get the same key.
        """
        entries: dict[str, Any] = {}
        for path, array in self._leaves():
            name = separator.join(path)
            if name in entries:
                raise NestedKeyError(
                    f"key {shown(path)} and another both become {name!r}; "
                    "choose another separator or rename one"
                )
            entries[name] = array
        return self._of(entries, self._batch)

    def unflatten_keys(self, separator: str = ".") -> Self:
        """Return the entries under nested keys: split where ``separator`` is.

        Raises:
            NestedKeyError: an entry would replace another one, or go through an array.
        """
        split = [key for key in self._entries if separator in key]
        new = self._mapped(lambda array: array, self._batch).exclude(*split)
        for key in split:
            path = tuple(key.split(separator))
            for i in range(1, len(path) + 1):
                taken = new._find(path[:i], None)
                if taken is not None and (i == len(path) or not isinstance(taken, _Entries)):
                    raise NestedKeyError(
                        f"key {key!r} cannot become {shown(path)}: {shown(path[:i])} is there; "
                        "choose another separator or rename one"
                    )
            new._put(path, self._entries[key], ())
        return new


def _writable(path: Path, array: Any) -> Any:
    if not array.flags.writeable:
        raise NestedTypeError(
            f"key {shown(path)} is a view that cannot be written, such as of expand; use clone() "
            "first"
        )
    return np.asarray(array)
