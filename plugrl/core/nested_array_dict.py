"""A nested dictionary of arrays with a batch size: episodes of the text world, by step and agent.

It does with NumPy what TensorDict does with PyTorch, and holds strings as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from plugrl.core.nested import joined, saved
from plugrl.core.nested.arrays import (
    Array,
    NestedIndexError,
    NestedKeyError,
    NestedShapeError,
    NestedTypeError,
    Path,
    is_string,
    shown,
)
from plugrl.core.nested.computed import _Computed
from plugrl.core.nested.entries import _Entries, sizes_of
from plugrl.core.nested.indexed import _Indexed

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = [
    "NestedArrayDict",
    "NestedIndexError",
    "NestedKeyError",
    "NestedShapeError",
    "NestedTypeError",
    "cat",
    "concatenate",
    "stack",
]

stack = joined.stack
concatenate = joined.concatenate
cat = joined.concatenate


class NestedArrayDict(_Indexed, _Computed):
    """NumPy arrays by key, in nested dictionaries, whose shapes begin with one batch size.

    Operations have the names and results of TensorDict's. Arrays hold numbers, truth values or
    strings of any length, where ``None`` stands for no string. A key is a string, or a tuple of
    strings for an entry of a nested dictionary: ``episode["agents", "message"]``. Any other index
    is one into the batch: ``episode[0]``, ``episode[mask, -1]``. Slices are views.

    Args:
        source: Entries by key: arrays, what NumPy makes arrays of, mappings, nested dictionaries.
        batch_size: The leading dimensions that all entries share: ``()`` by default.

    Raises:
        NestedKeyError: a key is no key. It is a ``KeyError`` and a ``UsageError``.
        NestedShapeError: a shape does not begin with the batch size. It is a ``ValueError``.
        NestedTypeError: a value is of another type. It is a ``TypeError``.
    """

    def __init__(
        self,
        source: Mapping[Any, Any] | NestedArrayDict | None = None,
        batch_size: int | Sequence[int] = (),
    ) -> None:
        self._entries = {}
        self._batch = sizes_of(batch_size)
        if source is not None:
            self._take(source)

    def _take(self, source: Any) -> None:
        if not isinstance(source, (Mapping, _Entries)):
            raise NestedTypeError(f"a {type(source).__name__} has no entries; give a mapping")
        self.update(source)

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

        Raises:
            NestedKeyError, NestedShapeError, NestedTypeError: as the class does.
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
        if shapes:
            self.batch_size = _prefix(shapes)[:batch_dims]
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as plain dictionaries of arrays, which are not copied."""
        return {
            key: value.to_dict() if isinstance(value, NestedArrayDict) else value
            for key, value in self._entries.items()
        }

    @classmethod
    def from_tensordict(cls, tensordict: TensorDict) -> Self:
        """Build one from a TensorDict on the CPU; arrays share memory with its tensors.

        Raises:
            NestedTypeError: an entry is no tensor.
        """
        return cls._from_tensordict(tensordict, ())

    @classmethod
    def _from_tensordict(cls, tensordict: Any, above: Path) -> Self:
        import torch
        from tensordict import TensorDictBase

        new = cls({}, tensordict.batch_size)
        for key, value in tensordict.items():
            if isinstance(value, TensorDictBase):
                new.set(key, cls._from_tensordict(value, (*above, key)))
            elif isinstance(value, torch.Tensor):
                new._put((key,), value.detach().cpu().numpy(), above)
            else:
                raise NestedTypeError(
                    f"key {shown((*above, key))} holds a {type(value).__name__}, not a tensor; "
                    "exclude it first"
                )
        return new

    def to_tensordict(self) -> TensorDict:
        """Return a TensorDict, which shares memory with the arrays where PyTorch can.

        Raises:
            NestedTypeError: an entry is of strings, or of numbers that PyTorch has not.
        """
        return self._to_tensordict(())

    def _to_tensordict(self, above: Path) -> TensorDict:
        from tensordict import TensorDict

        entries = {
            key: value._to_tensordict((*above, key))
            if isinstance(value, NestedArrayDict)
            else _tensor((*above, key), value)
            for key, value in self._entries.items()
        }
        return TensorDict(entries, batch_size=self._batch)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to one file, strings included, without pickle.

        Raises:
            RunError, UsageError: the file cannot be written.
        """
        saved.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote; nothing in it is run.

        Raises:
            UsageError: there is no such file.
            RunError: it is not one of these, or is damaged.
        """
        return saved.load(cls, path)

    @staticmethod
    def stack(items: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
        """Return several of one batch size as one, along a new dimension; ``np.stack`` does so too.

        Raises:
            NestedIndexError: the dimension is outside the batch size.
            NestedKeyError: the keys differ.
            NestedShapeError: batch sizes or shapes differ, or there is nothing to stack.
            NestedTypeError: an entry is of strings in one and of numbers in another.
        """
        return joined.stack(items, dim)

    @staticmethod
    def cat(items: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
        """Return several as one, along a dimension; ``np.concatenate`` does so too.

        Raises:
            NestedIndexError: there is no such dimension.
            NestedKeyError: the keys differ.
            NestedShapeError: sizes of other dimensions differ, or there is nothing to join.
            NestedTypeError: an entry is of strings in one and of numbers in another.
        """
        return joined.concatenate(items, dim)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in _FUNCTIONS:
            return NotImplemented
        return _FUNCTIONS[function](*args, **kwargs)

    def __repr__(self) -> str:
        rows = [
            f"{key}: {value!r}"
            if isinstance(value, NestedArrayDict)
            else f"{key}: Array({value.shape}, {'str' if is_string(value) else value.dtype})"
            for key, value in self._entries.items()
        ]
        fields = indent(",\n".join(rows), "    ")
        fields = f"{{\n{indent(fields, '    ')}}}" if rows else "{}"
        return f"{type(self).__name__}(\n    fields={fields},\n    batch_size={self._batch})"


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.stack: lambda arrays, axis=0: joined.stack(arrays, axis),
    np.concatenate: lambda arrays, axis=0: joined.concatenate(arrays, axis),
}


def _prefix(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The leading dimensions that all shapes share."""
    shared: list[int] = []
    for sizes in zip(*shapes, strict=False):
        if len(set(sizes)) > 1:
            break
        shared.append(sizes[0])
    return tuple(shared)


def _tensor(path: Path, array: Array) -> Any:
    import torch

    if is_string(array):
        raise NestedTypeError(
            f"key {shown(path)} is of strings, which no tensor holds; exclude it first"
        )
    usable = array.flags.writeable and min(array.strides, default=0) >= 0 and array.dtype.isnative
    try:
        return torch.from_numpy(array if usable else array.astype(array.dtype.newbyteorder("=")))
    except TypeError:
        raise NestedTypeError(
            f"key {shown(path)} is of {array.dtype}, which PyTorch has not; convert it with astype"
        ) from None
