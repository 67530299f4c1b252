"""A nested dictionary of arrays with a batch size: episodes of the text world, by step and agent.

It does with NumPy what TensorDict does with PyTorch, and holds strings as well.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as File
from textwrap import indent
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from plugrl.core.errors import RunError, UsageError

if TYPE_CHECKING:
    from tensordict import TensorDict

Array: TypeAlias = npt.NDArray[Any]
Sizes: TypeAlias = tuple[int, ...]
Path: TypeAlias = tuple[str, ...]

#: Strings of any length, and None where there is none; objects where NumPy has no such type.
STRING: Any = (
    np.dtypes.StringDType(na_object=None) if hasattr(np.dtypes, "StringDType") else np.dtype(object)
)
#: Kinds of numbers, in PyTorch's order: floats of any size win over integers of any size.
_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 2}
_ALL = slice(None)
_FORMAT = 1


class NestedKeyError(UsageError, KeyError):
    """A key of a nested dictionary is missing, taken or no key at all."""

    __str__ = UsageError.__str__


class NestedIndexError(UsageError, IndexError):
    """An index or a dimension is outside the batch size, or of a kind that has no meaning."""


class NestedShapeError(UsageError, ValueError):
    """The shape of an entry does not go with the batch size or with another entry."""


class NestedTypeError(UsageError, TypeError):
    """A value is of a type that is not held, or that the operation has no meaning for."""


class NestedArrayDict:
    """NumPy arrays by key, in nested dictionaries, whose shapes begin with one batch size.

    Operations have the names and results of TensorDict's. Arrays hold numbers, truth values or
    strings of any length, where ``None`` stands for no string. A key is a string, or a tuple of
    strings for an entry of a nested dictionary: ``episode["agents", "message"]``. Any other index
    is one into the batch: ``episode[0]``, ``episode[mask, -1]``. Slices are views.

    Args:
        source: Entries by key: arrays, what NumPy makes arrays of, mappings, nested dictionaries.
        batch_size: The leading dimensions that all entries share: ``()`` by default.

    Raises:
        NestedKeyError: here and in all methods: a key is missing, taken or no key. It is a
            ``KeyError`` and, like the others, a ``UsageError``.
        NestedIndexError: an index or a dimension leaves the batch size. It is an ``IndexError``.
        NestedShapeError: a shape does not go with the batch size or with another shape. It is a
            ``ValueError``.
        NestedTypeError: a value is of another type, or strings meet numbers. It is a ``TypeError``.
    """

    def __init__(
        self,
        source: Mapping[Any, Any] | NestedArrayDict | None = None,
        batch_size: int | Sequence[int] = (),
    ) -> None:
        self._entries: dict[str, Any] = {}
        self._batch = _sizes(batch_size)
        if source is not None:
            self.update(source)

    def _of(self, entries: dict[str, Any], batch: Sizes) -> Self:
        """Build without checks."""
        new = type(self)({}, batch)
        new._entries = entries
        return new

    # Entries by key.

    def _find(self, path: Path, default: Any = ...) -> Any:
        found: Any = self
        for depth, word in enumerate(path):
            if not isinstance(found, NestedArrayDict):
                raise _at_path(path, path[:depth])
            if word not in found._entries:
                if default is not ...:
                    return default
                there = ", ".join(map(repr, found._entries)) or "no keys"
                place = f"under {_shown(path[:depth])}" if depth else "it"
                raise NestedKeyError(f"no key {_shown(path)}; {place} has {there}")
            found = found._entries[word]
        return found

    def _array(self, path: Path) -> Any:
        array = self._find(path)
        if isinstance(array, NestedArrayDict):
            raise NestedKeyError(f"key {_shown(path)} is a nested dictionary; name an array in it")
        return array

    def _put(self, path: Path, value: Any, above: Path = ()) -> None:
        here = (*above, path[0])
        if path[1:]:
            inner = self._entries.get(path[0], self.empty())
            if not isinstance(inner, NestedArrayDict):
                raise _at_path((*above, *path), here)
            inner._put(path[1:], value, here)
            value = inner
        self._entries[path[0]] = self._check_entry(
            value, here
        )  # last, so that a refusal changes none

    def _check_entry(self, value: Any, path: Path) -> Any:
        """``value`` as an entry of this node at ``path``."""
        if isinstance(value, Mapping):
            return self.empty()._merge(value, path)
        if not isinstance(value, NestedArrayDict):
            return _fitting(_as_array(value, path), self._batch, path)
        if value._batch[: self.ndim] != self._batch:
            value = value.copy()
            value._resize(self._batch, path)
        return value

    def _leaves(self) -> list[tuple[Path, Array]]:
        return [(_path(key), array) for key, array in self.items(True, True)]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the array or the nested dictionary at a key, or ``default``; neither is a copy.

        Raises:
            NestedKeyError: the key goes through an array, or is no key.
        """
        return self._find(_path(key), default)

    def set(self, key: Any, value: Any) -> Self:
        """Put an array, a nested dictionary or a mapping at a key, and return ``self``.

        Nested dictionaries above it are made as needed. Arrays are kept, not copied; the shape
        of each must begin with the batch size, ``[*batch_size, ...]``.

        Raises:
            NestedKeyError: the key goes through an array, or is no key.
            NestedShapeError: a shape does not begin with the batch size.
            NestedTypeError: a value is nothing that NumPy makes an array of numbers or strings of.
        """
        self._put(_path(key), value)
        return self

    def set_(self, key: Any, value: Any) -> Self:
        """Write into the array at a key, which keeps its type and shape, and return ``self``.

        Whoever shares the array sees the new values; :meth:`set` puts another array there.

        Raises:
            NestedKeyError: there is no array at the key.
            NestedShapeError: the value has another shape.
            NestedTypeError: strings meet numbers.
        """
        old, new = self._array(_path(key)), _as_array(value, _path(key))
        if new.shape != old.shape:
            raise NestedShapeError(
                f"key {_shown(_path(key))} has shape {old.shape}, but the value has {new.shape}; "
                "use set"
            )
        old[...] = _writable(old, ..., new, _path(key))
        return self

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Write into a part of the array at a key, and return ``self``.

        Args:
            key: Of an array that is there.
            value: What the part becomes; it broadcasts with the part.
            index: Into the batch, such as ``0`` or a mask of shape ``batch_size``.

        Raises:
            NestedKeyError, NestedIndexError: there is no such array, or no such part.
            NestedShapeError, NestedTypeError: the value does not go into it.
        """
        array = self._array(_path(key))
        where = self._where(index)[0](array)
        array[where] = _writable(array, where, value, _path(key))
        return self

    def update(self, other: Any) -> Self:
        """Put all entries of a mapping or nested dictionary here, and return ``self``.

        Nested dictionaries on both sides are merged; all else is replaced.
        """
        if not isinstance(other, (Mapping, NestedArrayDict)):
            raise NestedTypeError(f"a {type(other).__name__} has no entries; give a mapping")
        return self._merge(other, ())

    def _merge(self, other: Any, above: Path) -> Self:
        for key, value in list(other.items()):
            path = _path(key)
            old = self._find(path, None) if path in self else None
            if isinstance(old, NestedArrayDict) and isinstance(value, (Mapping, NestedArrayDict)):
                old._merge(value, (*above, *path))
            else:
                self._put(path, value, above)
        return self

    def del_(self, key: Any) -> Self:
        """Take the entry at a key out, and return ``self``.

        Raises:
            NestedKeyError: there is none.
        """
        self.pop(key)
        return self

    def pop(self, key: Any, default: Any = ...) -> Any:
        """Take the entry at a key out and return it, or ``default`` where there is none.

        Raises:
            NestedKeyError: there is neither an entry nor a default.
        """
        path = _path(key)
        found = self._find(path, default)
        if path in self:
            del self._find(path[:-1])._entries[path[-1]]
        return found

    def setdefault(self, key: Any, default: Any) -> Any:
        """Return the entry at a key, which is ``default`` from now on if there was none."""
        if key not in self:
            self.set(key, default)
        return self.get(key)

    def rename_key_(self, old: Any, new: Any) -> Self:
        """Move an entry to another key, replacing what is there, and return ``self``.

        Raises:
            NestedKeyError: there is no such entry, or nothing can be at the other key; the entry
                stays where it is then.
        """
        value = self.pop(old)
        try:
            return self.set(new, value)
        except UsageError:
            self.set(old, value)
            raise

    def items(
        self, include_nested: bool = False, leaves_only: bool = False
    ) -> list[tuple[Any, Any]]:
        """Return keys with their entries.

        Args:
            include_nested: With the entries of nested dictionaries, whose keys are tuples.
            leaves_only: Without the nested dictionaries themselves.
        """
        found: list[tuple[Any, Any]] = []
        for key, value in self._entries.items():
            nested = isinstance(value, NestedArrayDict)
            if nested and include_nested:
                inner = value.items(include_nested, leaves_only)
                found += [((key, *_path(below)), entry) for below, entry in inner]
            if not (nested and leaves_only):
                found.append((key, value))
        return found

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the keys of :meth:`items`."""
        return [key for key, _ in self.items(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the entries of :meth:`items`."""
        return [value for _, value in self.items(include_nested, leaves_only)]

    def select(self, *keys: Any, strict: bool = True) -> Self:
        """Return a nested dictionary of these entries alone, which shares their arrays.

        Args:
            keys: What to keep: arrays, or nested dictionaries with all that they hold.
            strict: Whether a missing key is an error.
        """
        paths = [_path(key) for key in keys]
        for path in paths:
            self._find(path, ... if strict else None)
        new = self.empty()
        for key in dict.fromkeys(path[0] for path in paths if path[:1] in self):
            deeper = [path[1:] for path in paths if path[0] == key and path[1:]]
            value = self._entries[key]
            new._entries[key] = value.select(*deeper, strict=strict) if deeper else value
        return new

    def exclude(self, *keys: Any) -> Self:
        """Return a nested dictionary without these entries, which shares the other arrays.

        Keys that are missing do no harm.
        """
        new, paths = self.empty(), [_path(key) for key in keys]
        for key, value in self._entries.items():
            inner = [path[1:] for path in paths if path[0] == key]
            if () not in inner:
                nested = inner and isinstance(value, NestedArrayDict)
                new._entries[key] = value.exclude(*inner) if nested else value
        return new

    def empty(self) -> Self:
        """Return a nested dictionary of this batch size without entries."""
        return self._of({}, self._batch)

    def flatten_keys(self, separator: str = ".") -> Self:
        """Return the arrays under keys of one string each: words joined by ``separator``.

        ``("agents", "message")`` becomes ``"agents.message"``. Arrays are shared.

        Raises:
            NestedKeyError: two arrays would have one key.
        """
        return self.empty()._fresh((path, (separator.join(path),), a) for path, a in self._leaves())

    def unflatten_keys(self, separator: str = ".") -> Self:
        """Return the entries under nested keys, which undoes ``flatten_keys``; arrays are shared.

        Raises:
            NestedKeyError: a key would go through an array, or be that of another entry.
        """
        split = [key for key in self._entries if separator in key]
        moved = (((key,), tuple(key.split(separator)), self._entries[key]) for key in split)
        return self.copy().exclude(*split)._fresh(moved)

    def _fresh(self, entries: Any) -> Self:
        """Put each of some entries, (old key, new key, value), where there is none."""
        for old, new, value in entries:
            *above, last = (new[: depth + 1] for depth in range(len(new)))
            there = [path for path in above if path in self and isinstance(self[path], np.ndarray)]
            if there or last in self:
                raise NestedKeyError(
                    f"key {_shown(old)} cannot become {_shown(new)}: "
                    f"{_shown((*there, last)[0])} is there; choose another separator or rename one"
                )
            self._put(new, value)
        return self

    def __contains__(self, key: Any) -> bool:
        found: Any = self
        for word in _path(key):
            if not isinstance(found, NestedArrayDict) or word not in found._entries:
                return False
            found = found._entries[word]
        return True

    def __delitem__(self, key: Any) -> None:
        self.del_(key)

    # The batch: its size, and parts of it.

    @property
    def batch_size(self) -> Sizes:
        """The leading dimensions that all entries share; it can be set to what they have.

        Nested dictionaries whose own batch size does not begin with the new one get it too.

        Raises:
            NestedShapeError: when set, the shape of an array does not begin with it.
        """
        return self._batch

    @batch_size.setter
    def batch_size(self, sizes: int | Sequence[int]) -> None:
        self._resize(_sizes(sizes), ())

    def _resize(self, batch: Sizes, above: Path) -> None:
        for path, array in self._leaves():
            _fitting(array, batch, (*above, *path))
        self._batch = batch
        for key, value in self._entries.items():
            if isinstance(value, NestedArrayDict) and value._batch[: len(batch)] != batch:
                value._resize(batch, (*above, key))

    @property
    def shape(self) -> Sizes:
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
        """Return the number of elements of the batch: the product of its size, 1 for ``()``."""
        return math.prod(self._batch)

    def is_empty(self) -> bool:
        """Return whether there is no array at any depth."""
        return not self._leaves()

    def __len__(self) -> int:
        return self._batch[0] if self._batch else 0

    def __bool__(self) -> bool:
        raise NestedTypeError(
            "a nested dictionary is neither true nor false; use is_empty(), len(), all() or any()"
        )

    def __iter__(self) -> Iterator[Self]:
        return iter(self.unbind(0))

    def _where(self, index: Any) -> tuple[Callable[[Array], Any], Sizes]:
        """``index`` as one of each array, and the batch size that it gives.

        Of integers beside arrays NumPy has rules of its own, so PyTorch says what is meant.
        """
        parts = index if isinstance(index, tuple) else (index,)
        parts = tuple(int(part) if isinstance(part, np.integer) else part for part in parts)
        if parts and all(isinstance(part, slice) and part == _ALL for part in parts):
            parts = (...,)  # as [:] is of a batch size of no dimensions
        with _refusals(f"index {index!r} of batch size {self._batch}"):
            if not all(part is None or part is ... or type(part) in (int, slice) for part in parts):
                return self._places(self._numbers()[tuple(map(_part, parts))])
            batch = np.broadcast_to(np.True_, self._batch)[parts].shape
        return self._around(parts if ... in parts else (*parts, ...)), batch

    def _around(self, parts: tuple[Any, ...]) -> Callable[[Array], Any]:
        """An index with one ellipsis that goes no further than the batch."""
        return lambda array: (*parts, *[_ALL] * (array.ndim - self.ndim))

    def _numbers(self) -> Any:
        """The batch as a tensor that counts its places."""
        import torch

        return torch.arange(self.numel()).reshape(self._batch)

    def _places(self, numbers: Any) -> tuple[Callable[[Array], Any], Sizes]:
        """An index for these numbers of places, and the batch size that it gives."""
        places = np.unravel_index(numbers.numpy(), self._batch)
        return self._around((*places, ...)), tuple(numbers.shape)

    def __getitem__(self, index: Any) -> Any:
        if _is_key(index):
            return self._find(_path(index))
        where, batch = self._where(index)
        return self._map_arrays(lambda array: array[where(array)], batch)

    def __setitem__(self, index: Any, value: Any) -> None:
        if _is_key(index):
            self.set(index, value)
            return
        where, batch = self._where(index)
        if isinstance(value, Mapping):
            value = self._of({}, batch).update(value)
        nested = isinstance(value, NestedArrayDict)
        if nested and value._batch != batch:
            raise NestedShapeError(
                f"the index gives batch size {batch}, but the value has {value._batch}"
            )
        leaves = value._leaves() if nested else [(path, value) for path, _ in self._leaves()]
        writes = []
        for path, new in leaves:
            shape = (*self._batch, *np.shape(new)[len(batch) :])
            array = self._array(path) if path in self else _zeros(shape, new)
            writes.append((path, array, _writable(array, where(array), new, path)))
        for path, array, new in writes:  # once all is known to fit
            array[where(array)] = new
            self._put(path, array)

    # Other shapes. PyTorch says what an operation makes of the batch size, or refuses it.

    def _becomes(self, name: str, *arguments: Any) -> Any:
        import torch

        with _refusals(f"{name} of batch size {self._batch}"):
            result = getattr(torch.empty(self._batch, device="meta"), name)(*arguments)
        several = isinstance(result, (tuple, list))
        return [tuple(part.shape) for part in result] if several else tuple(result.shape)

    def _axis(self, dim: int) -> int:
        with _refusals(f"dimension {dim} of batch size {self._batch}"):
            return range(self.ndim)[dim]

    def _map_arrays(self, change: Callable[[Array], Any], batch: Sizes) -> Self:
        """Change every array; ``batch`` replaces the batch size, here and within nested ones."""
        known = self.ndim
        return self._each(lambda _, array: change(array), lambda old: batch + old[known:])

    def _reshape_batch(self, batch: Sizes) -> Self:
        return self._map_arrays(
            lambda array: array.reshape(batch + array.shape[self.ndim :]), batch
        )

    def reshape(self, *shape: Any) -> Self:
        """Return it with another batch size of as many elements; one size may be -1.

        An array ``[*batch_size, ...]`` becomes ``[*shape, ...]``, a view where NumPy can give one.

        Raises:
            NestedShapeError: the numbers of elements differ.
        """
        return self._reshape_batch(self._becomes("reshape", *shape))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Return it with the dimensions from ``start_dim`` to ``end_dim``, inclusive, made one.

        Of batch size ``[4, 3]`` it gives ``[12]``.

        Raises:
            NestedIndexError: there is no such dimension.
        """
        return self._reshape_batch(self._becomes("flatten", start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Return it with one dimension made several, with as many elements; one size may be -1.

        Of batch size ``[12]``, ``unflatten(0, [4, 3])`` gives ``[4, 3]``.

        Raises:
            NestedIndexError, NestedShapeError: there is no such dimension, or sizes do not fit it.
        """
        return self._reshape_batch(self._becomes("unflatten", dim, sizes))

    def squeeze(self, dim: int | None = None) -> Self:
        """Return it without a dimension of the batch of size 1, or without all of them.

        A dimension of another size stays.
        """
        return self._reshape_batch(self._becomes("squeeze", *([] if dim is None else [dim])))

    def unsqueeze(self, dim: int) -> Self:
        """Return it with a new dimension of size 1 at place ``dim`` of the batch size."""
        return self._reshape_batch(self._becomes("unsqueeze", dim))

    def expand(self, *shape: Any) -> Self:
        """Return it with new leading dimensions, and those of size 1 repeated: read-only views.

        Of batch size ``[1, 3]``, ``expand(2, 4, 3)`` gives ``[2, 4, 3]``; -1 keeps a size.

        Raises:
            NestedShapeError: a dimension of another size than 1 would change.
        """
        batch = self._becomes("expand", *shape)
        wide = self._reshape_batch((1,) * (len(batch) - self.ndim) + self._batch)
        rest = len(batch)
        return wide._map_arrays(
            lambda array: np.broadcast_to(array, batch + array.shape[rest:]), batch
        )

    def _permute_axes(self, name: str, *arguments: Any) -> Self:
        import torch

        with _refusals(f"{name} of batch size {self._batch}", NestedIndexError):
            # Dimensions whose sizes are their numbers, so that the sizes tell the order.
            counted = torch.empty(tuple(range(self.ndim)), device="meta")
            order = getattr(counted, name)(*arguments).shape
        return self._map_arrays(
            lambda array: array.transpose(*order, *range(self.ndim, array.ndim)),
            tuple(self._batch[dim] for dim in order),
        )

    def permute(self, *dims: Any) -> Self:
        """Return it with its dimensions in another order; those not named stay at the end."""
        named = _sizes(dims[0] if len(dims) == 1 else dims)
        return self._permute_axes("permute", (*named, *range(len(named), self.ndim)))

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Return it with two dimensions exchanged."""
        return self._permute_axes("transpose", dim0, dim1)

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> list[Self]:
        """Return parts along a dimension: of one size, the last perhaps smaller, or of each size.

        Sizes add up to that of the dimension.
        """
        return self._parts(self._becomes("split", split_size, dim), dim)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """Return at most so many parts of one size along a dimension, the last perhaps smaller."""
        return self._parts(self._becomes("chunk", chunks, dim), dim)

    def _parts(self, batches: list[Sizes], dim: int) -> list[Self]:
        before = [_ALL] * self._axis(dim)
        ends = np.cumsum([batch[dim] for batch in batches]).tolist()
        return [self[(*before, slice(*ends))] for ends in zip([0, *ends], ends, strict=False)]

    def unbind(self, dim: int = 0) -> list[Self]:
        """Return what is at each place of a dimension, without that dimension: views.

        Of batch size ``[4, 3]``, ``unbind(1)`` gives three of batch size ``[4]``.
        """
        places = range(len(self._becomes("unbind", dim)))
        return [self[(*[_ALL] * self._axis(dim), place)] for place in places]

    def gather(self, dim: int, index: Any) -> Self:
        """Return along a dimension what ``index`` names at each place of the others.

        Args:
            dim: The dimension of the batch that is chosen from.
            index: Integers with at most as many dimensions as the batch size; those but ``dim``
                have the size of the batch, or 1. Dimensions left out are taken whole, and are no
                part of the new batch size.
        """
        import torch

        with _refusals(f"gather of batch size {self._batch}", NestedIndexError):
            places = torch.as_tensor(index)
            sizes = list(self._batch)
            sizes[dim] = places.shape[range(self.ndim)[dim]]
            wide = places.reshape(*places.shape, *[1] * (self.ndim - places.ndim)).expand(sizes)
            where, batch = self._places(self._numbers().gather(dim, wide))
        new = self._map_arrays(lambda array: array[where(array)], batch)
        new._batch = batch[: places.ndim]
        return new

    def contiguous(self) -> Self:
        """Return it with every array in one piece of memory; those that are so already are kept."""
        return self._map_arrays(lambda array: np.require(array, requirements="C"), self._batch)

    def is_contiguous(self) -> bool:
        """Return whether every array is in one piece of memory."""
        return all(array.flags.c_contiguous for _, array in self._leaves())

    # Functions of the arrays.

    def _each(
        self,
        function: Callable[..., Any],
        batch: Callable[[Sizes], Sizes],
        others: Sequence[Any] = (),
        default: Any = ...,
        filter_empty: bool = False,
        above: Path = (),
    ) -> Self:
        """What ``function`` makes of each key and its arrays, and ``batch`` of each batch size."""
        new = self._of({}, batch(self._batch))
        for key, value in self._entries.items():
            path = (*above, key)
            if isinstance(value, NestedArrayDict):
                inner = value._each(function, batch, others, default, filter_empty, path)
                if not (filter_empty and inner.is_empty()):
                    new._entries[key] = inner
                continue
            result = function(path, value, *(other._find(path, default) for other in others))
            if result is not None:
                new._entries[key] = new._check_entry(result, path)
        return new

    def apply(
        self,
        function: Callable[..., Any],
        *others: Any,
        batch_size: int | Sequence[int] | None = None,
        default: Any = ...,
        filter_empty: bool = False,
    ) -> Self:
        """Return what a function makes of every array.

        Args:
            function: Gets an array, and those at the same key of ``others``. None leaves it out.
            others: Nested dictionaries with the same keys.
            batch_size: The new batch size, of nested ones too; as it is by default.
            default: What stands for an array that one of the others has not.
            filter_empty: Leave nested dictionaries out that hold no array afterwards.
        """
        batch = None if batch_size is None else _sizes(batch_size)
        return self._each(
            lambda _, *arrays: function(*arrays),
            lambda old: old if batch is None else batch,
            others,
            default,
            filter_empty,
        )

    def copy(self) -> Self:
        """Return another nested dictionary of the same arrays; each has its own entries."""
        return self.clone(recurse=False)

    def clone(self, recurse: bool = True) -> Self:
        """Return another nested dictionary of copies of the arrays, or of the same ones."""
        return self._map_arrays(np.copy if recurse else lambda array: array, self._batch)

    __copy__ = copy

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        if isinstance(other, NestedArrayDict) and other._batch != self._batch:
            raise NestedShapeError(f"batch sizes {self._batch} and {other._batch} differ")
        if isinstance(other, Mapping):
            other = NestedArrayDict(other)
        if not isinstance(other, NestedArrayDict):
            return self._each(lambda path, array: _equal(path, array, other), lambda old: old)
        _check_keys([self, other])
        return self._each(_equal, lambda old: old, [other])

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return (self == other).apply(np.logical_not)

    def all(self, dim: int | None = None) -> Any:
        """Return whether all elements are true: one truth value, or along a dimension of the batch.

        With ``dim`` it is a nested dictionary of truth values without that dimension.

        Raises:
            NestedTypeError: an array holds strings, which are neither.
        """
        return self._reduce(np.all, all, dim)

    def any(self, dim: int | None = None) -> Any:
        """Return whether any element is true, of all or along a dimension; see :meth:`all`.

        Raises:
            NestedTypeError: an array holds strings, which are neither.
        """
        return self._reduce(np.any, any, dim)

    def _reduce(self, function: Any, whole: Any, dim: int | None) -> Any:
        for path, array in self._leaves():
            if is_string(array):
                raise NestedTypeError(f"key {_shown(path)} is of strings, neither true nor false")
        if dim is None:
            return whole(bool(function(array)) for _, array in self._leaves())
        axis = self._axis(dim)
        batch = self._batch[:axis] + self._batch[axis + 1 :]
        return self._map_arrays(lambda array: function(array, axis=axis), batch)

    @staticmethod
    def stack(items: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
        """Return several of one batch size as one, along a new dimension; ``np.stack`` does so too.

        All have the same keys and shapes. Three of batch size ``[4]`` give ``[3, 4]``.

        Raises:
            NestedKeyError, NestedShapeError: they differ, or there are none.
        """
        return _join(np.stack, items, dim)

    @staticmethod
    def cat(items: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
        """Return several as one, along a dimension; ``np.concatenate`` does so too.

        All have the same keys and, but for that dimension, the same shapes. Of batch sizes ``[4]``
        and ``[2]`` it gives ``[6]``.

        Raises:
            NestedKeyError, NestedShapeError: they differ in anything else, or there are none.
        """
        return _join(np.concatenate, items, dim)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in (np.stack, np.concatenate):
            return NotImplemented
        return _join(function, *args, **kwargs)

    # Other forms: dictionaries, TensorDicts, files.

    @classmethod
    def from_dict(
        cls,
        data: Mapping[Any, Any],
        batch_size: int | Sequence[int] | None = None,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
    ) -> Self:
        """Build one from nested mappings.

        Args:
            data: Entries by key.
            batch_size: The batch size, if it is known.
            auto_batch_size: Take the longest batch size that fits, in nested ones too.
            batch_dims: The largest number of its dimensions.
        """
        new = cls(data, () if batch_size is None else batch_size)
        if batch_size is None and (auto_batch_size or batch_dims is not None):
            new.auto_batch_size_(batch_dims)
        return new

    def auto_batch_size_(self, batch_dims: int | None = None) -> Self:
        """Take the longest batch size that fits, in nested ones too, and return ``self``."""
        shapes = []
        for value in self._entries.values():
            if isinstance(value, NestedArrayDict):
                value.auto_batch_size_(batch_dims)
            if not isinstance(value, NestedArrayDict) or not value.is_empty():
                shapes.append(value.shape)
        same = itertools.takewhile(lambda sizes: len(set(sizes)) == 1, zip(*shapes, strict=False))
        if shapes:
            self.batch_size = [sizes[0] for sizes in same][:batch_dims]
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as plain dictionaries of arrays, which are not copied."""
        return {
            key: value.to_dict() if isinstance(value, NestedArrayDict) else value
            for key, value in self._entries.items()
        }

    @classmethod
    def from_tensordict(cls, tensordict: TensorDict) -> Self:
        """Build one from a TensorDict of tensors; arrays share memory with those on the CPU.

        Raises:
            NestedTypeError: an entry is no tensor, such as a string; exclude it first.
        """
        import torch
        from tensordict import TensorDictBase

        new = cls({}, tensordict.batch_size)
        for key, value in tensordict.items():
            if not isinstance(value, (torch.Tensor, TensorDictBase)):
                raise NestedTypeError(
                    f"key {key!r} holds a {type(value).__name__}, not a tensor; exclude it first"
                )
            nested = isinstance(value, TensorDictBase)
            new.set(key, cls.from_tensordict(value) if nested else value.detach().cpu().numpy())
        return new

    def to_tensordict(self) -> TensorDict:
        """Return a TensorDict, which shares memory with the arrays where PyTorch can.

        Raises:
            NestedTypeError: an array holds strings, or numbers that PyTorch has not.
        """
        from tensordict import TensorDict

        def node(tree: NestedArrayDict, above: Path) -> Any:
            entries = {
                key: node(value, (*above, key))
                if isinstance(value, NestedArrayDict)
                else _tensor(value, (*above, key))
                for key, value in tree.items()
            }
            return TensorDict(entries, batch_size=tree.batch_size)

        made: TensorDict = node(self, ())
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file, strings included, without pickle: whole or not at all.

        Raises:
            RunError, UsageError: the file cannot be written.
        """
        from plugrl.core.run.atomic_writes import disk_error, temporary_name

        file = File(path)
        arrays: dict[str, Array] = {}
        document = {"format": _FORMAT, **_to_arrays(self, arrays)}
        arrays["tree"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
        temporary = temporary_name(file)
        try:
            with temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **arrays)
            os.replace(temporary, file)
        except OSError as error:
            raise disk_error(error, "save a nested dictionary", file, "another path") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote; nothing in it is run.

        Raises:
            UsageError: there is no such file.
            RunError: it is not one of these, or is damaged.
        """
        try:
            with File(path).open("rb") as file:
                if not zipfile.is_zipfile(file):  # NumPy would advise to unpickle it
                    raise ValueError("it is no zip file")
                file.seek(0)
                with np.load(file, allow_pickle=False) as stored:
                    arrays = {name: stored[name] for name in stored.files}
            document = json.loads(arrays["tree"].tobytes())
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']} is not {_FORMAT}")
            return cls(_from_arrays(document, arrays), document["batch_size"])
        except FileNotFoundError:
            raise UsageError(f"cannot load {path}: there is no such file") from None
        except OSError as error:
            raise RunError(f"cannot load {path}: {error.strerror or error}") from None
        except Exception as error:  # whatever reading another file, or a damaged one, may raise
            raise RunError(
                f"cannot load {path}: it is no whole file that NestedArrayDict.save wrote "
                f"({_reason(error) or type(error).__name__})"
            ) from None

    def __repr__(self) -> str:
        rows = [
            f"{key}: {value!r}"
            if isinstance(value, NestedArrayDict)
            else f"{key}: Array({value.shape}, {'str' if is_string(value) else value.dtype})"
            for key, value in self._entries.items()
        ]
        inner = indent(",\n".join(rows), " " * 8)
        fields = f"{{\n{inner}}}" if rows else "{}"
        return f"{type(self).__name__}(\n    fields={fields},\n    batch_size={self._batch})"


def is_string(array: Array) -> bool:
    """Whether an array of a nested dictionary holds strings."""
    return bool(array.dtype == STRING)


def _as_array(value: Any, path: Path) -> Array:
    """``value`` as an array that can be held; arrays of numbers and of strings are not copied."""
    try:
        array = np.asarray(value)
        if array.dtype.kind in _RANKS or (array.dtype.kind == "T" and is_string(array)):
            return array
        objects = np.array(value, dtype=object)  # NumPy makes strings of numbers beside strings
        for item in objects.flat:
            if item is not None and not isinstance(item, str):
                raise TypeError(f"an entry is of type {type(item).__name__}")
            (item or "").encode()
        return objects.astype(STRING)
    except (ValueError, TypeError, RuntimeError) as error:
        raise NestedTypeError(
            f"key {_shown(path)}: {type(value).__name__} cannot be held ({_reason(error)}); give "
            "numbers, truth values, or strings (None where there is none)"
        ) from None


def _zeros(shape: Sizes, like: Array) -> Array:
    return np.full(shape, "", STRING) if is_string(like) else np.zeros(shape, like.dtype)


def _fitting(array: Array, batch: Sizes, path: Path) -> Array:
    if array.shape[: len(batch)] != batch:
        raise NestedShapeError(
            f"key {_shown(path)} has shape {array.shape}, but its first dimensions must be the "
            f"batch size {batch}"
        )
    return array


def _alike(arrays: Sequence[Array], path: Path) -> Sequence[Array]:
    """The arrays in one type, which is chosen as PyTorch chooses."""
    if len({is_string(array) for array in arrays}) > 1:
        raise NestedTypeError(
            f"key {_shown(path)}: strings and numbers do not mix; convert one of them with astype"
        )
    if is_string(arrays[0]):
        return arrays
    highest = max(_RANKS[array.dtype.kind] for array in arrays)
    dtype = np.result_type(*(a.dtype for a in arrays if _RANKS[a.dtype.kind] == highest))
    return [array.astype(dtype, copy=False) for array in arrays]


def _writable(array: Array, where: Any, value: Any, path: Path) -> Array:
    """``value`` in the shape of a part of an array, into which it can be written."""
    new = _as_array(value, path)
    _alike([array, new], path)
    with _refusals(f"key {_shown(path)}"):
        if not array.flags.writeable:
            raise TypeError("a view that cannot be written, such as of expand; use clone() first")
        return np.broadcast_to(new, array[where].shape)


def _equal(path: Path, left: Array, right: Any) -> Array:
    """Compare element by element; a string is never equal to a number, nor None to ``""``."""
    other = _as_array(right, path)
    with _refusals(f"key {_shown(path)}"):
        shape = np.broadcast_shapes(left.shape, other.shape)
    if is_string(left) != is_string(other):
        return np.zeros(shape, bool)
    kept = object if is_string(left) else None  # as strings, NumPy takes None for an empty one
    return np.asarray(np.asarray(left, kept) == np.asarray(other, kept), dtype=bool)


def _check_keys(items: Sequence[NestedArrayDict]) -> None:
    for i, item in enumerate(items):
        here, there = (
            {_path(key): isinstance(value, NestedArrayDict) for key, value in each.items(True)}
            for each in (items[0], item)
        )
        if here != there:
            path = min(path for path, _ in here.items() ^ there.items())
            raise NestedKeyError(
                f"key {_shown(path)} is missing, or an array and not nested, in one of 0 and {i}; "
                "select the keys that all have"
            )


def _join(join: Any, items: Sequence[NestedArrayDict], axis: int = 0) -> NestedArrayDict:
    """What ``np.stack`` or ``np.concatenate`` makes of nested dictionaries."""
    for item in items:
        if not isinstance(item, NestedArrayDict):
            raise NestedTypeError(
                f"{join.__name__} got a {type(item).__name__}; give NestedArrayDicts alone"
            )
    sizes = [item.batch_size for item in items]
    with _refusals(f"{join.__name__} of batch sizes {', '.join(map(str, sizes)) or 'of nothing'}"):
        batch = join([np.broadcast_to(np.True_, size) for size in sizes], axis).shape
    _check_keys(items)
    axis %= len(batch)

    def together(path: Path, *arrays: Array) -> Array:
        alike = _alike(arrays, path)
        with _refusals(f"key {_shown(path)}"):
            joined: Array = join(alike, axis)
            return joined

    known = items[0].ndim
    return items[0]._each(together, lambda old: (*batch, *old[known:]), items[1:])


def _tensor(array: Array, path: Path) -> Any:
    import torch

    with _refusals(f"key {_shown(path)} is no tensor; exclude it first"):
        return torch.from_numpy(array if array.flags.writeable else array.copy())


def _to_arrays(tree: NestedArrayDict, arrays: dict[str, Array]) -> dict[str, Any]:
    """The tree for JSON, and its arrays by name; those of strings as lengths and bytes."""
    entries: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"array{len(arrays)}"
        if isinstance(value, NestedArrayDict):
            entries[key] = _to_arrays(value, arrays)
        elif is_string(value):
            texts = [None if text is None else text.encode() for text in value.ravel().tolist()]
            lengths = [-1 if text is None else len(text) for text in texts]
            arrays[name] = np.array(lengths, np.int64).reshape(value.shape)
            arrays[f"{name}.text"] = np.frombuffer(b"".join(filter(None, texts)), np.uint8)
            entries[key] = {"strings": name}
        else:
            arrays[name] = value
            entries[key] = {"array": name}
    return {"batch_size": list(tree.batch_size), "entries": entries}


def _from_arrays(document: Any, arrays: dict[str, Array]) -> dict[tuple[str], Any]:
    entries: dict[tuple[str], Any] = {}
    for key, value in document["entries"].items():
        if "entries" in value:
            entries[key,] = NestedArrayDict(_from_arrays(value, arrays), value["batch_size"])
        elif "array" in value:
            entries[key,] = arrays[value["array"]]
        else:
            lengths, text = arrays[value["strings"]], arrays[f"{value['strings']}.text"].tobytes()
            ends = np.cumsum(np.maximum(lengths, 0))
            if ends[-1:].sum() != len(text):
                raise ValueError("its strings are cut off")
            words = np.array([None] * lengths.size, dtype=object)
            for i, (size, end) in enumerate(zip(lengths.flat, ends, strict=True)):
                words[i] = None if size < 0 else text[end - size : end].decode()
            entries[key,] = words.reshape(lengths.shape).astype(STRING)
    return entries


def _is_key(key: Any) -> bool:
    """Whether ``key`` names an entry rather than a part of the batch."""
    return isinstance(key, str) or (isinstance(key, tuple) and bool(key) and all(map(_is_key, key)))


def _path(key: Any) -> Path:
    """A key as a tuple of strings; tuples inside it are flattened."""
    if isinstance(key, str):
        return (key,)
    if not _is_key(key):
        raise NestedKeyError(f"{key!r} is no key; give a string or a tuple of strings")
    return tuple(word for part in key for word in _path(part))


def _shown(path: Path) -> str:
    """A key as it is written in Python."""
    return repr(path[0]) if len(path) == 1 else repr(path)


def _at_path(path: Path, above: Path) -> NestedKeyError:
    return NestedKeyError(
        f"no key {_shown(path)}: {_shown(above)} is an array, not a nested dictionary"
    )


def _sizes(sizes: Any) -> Sizes:
    """A batch size as a tuple: a whole number stands for one dimension."""
    return tuple(map(int, sizes)) if isinstance(sizes, Sequence) else (int(sizes),)


def _part(part: Any) -> Any:
    """One part of an index as PyTorch takes it."""
    import torch

    if part is None or part is ... or isinstance(part, slice):
        return part
    array = np.asarray(part, dtype=None if np.size(part) else getattr(part, "dtype", np.int64))
    if array.dtype.kind not in "biu":
        raise IndexError("give integers, slices, masks, arrays of integers, ... or None")
    return torch.from_numpy(array) if array.ndim else array.item()


@contextlib.contextmanager
def _refusals(said: str, kind: type[UsageError] = NestedShapeError) -> Iterator[None]:
    """Turn a refusal of NumPy or PyTorch into one line that says of what."""
    try:
        yield
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, (IndexError, TypeError)):
            kind = NestedIndexError if isinstance(error, IndexError) else NestedTypeError
        raise kind(" ".join(f"{said}: {error}".split())) from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
