"""What a nested dictionary does to the dimensions of its batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from plugrl.core.nested.arrays import Array, NestedIndexError, NestedShapeError
from plugrl.core.nested.entries import _Entries, sizes_of


class _Shaped(_Entries):
    """Shapes: every operation is on the batch size, and leaves the dimensions after it alone."""

    def _dim(self, dim: int, extra: int = 0) -> int:
        dims = len(self._batch) + extra
        if not -dims <= dim < dims:
            raise NestedIndexError(
                f"dimension {dim} is not of batch size {self._batch}; give {-dims} to {dims - 1}"
                if dims
                else f"dimension {dim} is not of batch size (), which has none"
            )
        return dim % dims

    def reshape(self, *shape: Any) -> Self:
        """Return it with another batch size of as many elements; one size may be -1.

        Raises:
            NestedShapeError: the number of elements differs.
        """
        sizes = sizes_of(shape[0] if len(shape) == 1 else shape)
        return self._reshaped(self._inferred(sizes, self.numel(), self._batch))

    def _inferred(self, sizes: tuple[int, ...], count: int, old: Any) -> tuple[int, ...]:
        known = math.prod(size for size in sizes if size != -1)
        unknown = sizes.count(-1)
        if unknown == 1:
            free = count // known if known else 0
            sizes = tuple(free if size == -1 else size for size in sizes)
        if unknown > 1 or min(sizes, default=0) < 0 or math.prod(sizes) != count:
            raise NestedShapeError(
                f"batch size {old} cannot become {sizes}: it has {count} elements"
            )
        return sizes

    def _reshaped(self, batch: tuple[int, ...]) -> Self:
        known = len(self._batch)
        return self._mapped(lambda array: array.reshape(batch + array.shape[known:]), batch)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Return it with the dimensions from ``start_dim`` to ``end_dim`` made one.

        Raises:
            NestedIndexError: there is no such dimension, or they are in the wrong order.
        """
        if not self._batch:
            return self.unsqueeze(0).flatten(start_dim, end_dim)
        start, end = self._dim(start_dim), self._dim(end_dim)
        if start > end:
            raise NestedIndexError(f"flatten ends at dimension {end}, before its start {start}")
        middle = math.prod(self._batch[start : end + 1])
        return self._reshaped((*self._batch[:start], middle, *self._batch[end + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Return it with one dimension made several; one size may be -1.

        Raises:
            NestedIndexError: there is no such dimension.
            NestedShapeError: the sizes do not multiply to that of the dimension.
        """
        dim = self._dim(dim)
        inner = sizes_of(sizes)
        if not inner:
            raise NestedShapeError(f"dimension {dim} cannot become (); give one size or more")
        inner = self._inferred(inner, self._batch[dim], f"{self._batch} at dimension {dim}")
        return self._reshaped((*self._batch[:dim], *inner, *self._batch[dim + 1 :]))

    def expand(self, *shape: Any) -> Self:
        """Return it with new leading dimensions, and those of size 1 repeated: read-only views.

        Raises:
            NestedShapeError: a dimension of another size than 1 would change.
        """
        batch = sizes_of(shape[0] if len(shape) == 1 else shape)
        old = self._batch
        fits = len(batch) >= len(old) and min(batch, default=0) >= 0
        if not fits or any(a not in (1, b) for a, b in zip(old[::-1], batch[::-1], strict=False)):
            raise NestedShapeError(
                f"batch size {old} cannot be expanded to {batch}: only dimensions of size 1 are "
                "repeated, and new ones come first"
            )
        added = (1,) * (len(batch) - len(old))

        def change(array: Array) -> Array:
            rest = array.shape[len(old) :]
            return np.broadcast_to(array.reshape(added + array.shape), batch + rest)

        return self._mapped(change, batch)

    def squeeze(self, dim: int | None = None) -> Self:
        """Return it without a dimension of size 1, or without all of them.

        Raises:
            NestedIndexError: there is no such dimension.
        """
        dims = range(len(self._batch)) if dim is None else (self._dim(dim),)
        gone = {d for d in dims if self._batch[d] == 1}
        return self._reshaped(tuple(n for d, n in enumerate(self._batch) if d not in gone))

    def unsqueeze(self, dim: int) -> Self:
        """Return it with a new dimension of size 1.

        Raises:
            NestedIndexError: ``dim`` is outside the batch size.
        """
        dim = self._dim(dim, extra=1)
        return self._reshaped((*self._batch[:dim], 1, *self._batch[dim:]))

    def permute(self, *dims: Any) -> Self:
        """Return it with its dimensions in another order; those not named stay at the end.

        Raises:
            NestedIndexError: ``dims`` is no order of the leading dimensions.
        """
        known = len(self._batch)
        named = sizes_of(dims[0] if len(dims) == 1 else dims)
        order = [self._dim(dim) for dim in named]
        if sorted(order) != list(range(len(order))):
            raise NestedIndexError(
                f"{named} is no order of the dimensions of batch size {self._batch}; name each once"
            )
        order += range(len(order), known)

        def change(array: Array) -> Array:
            return array.transpose(*order, *range(known, array.ndim))

        return self._mapped(change, tuple(self._batch[dim] for dim in order))

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Return it with two dimensions exchanged.

        Raises:
            NestedIndexError: there is no such dimension.
        """
        order = list(range(len(self._batch)))
        first, second = self._dim(dim0), self._dim(dim1)
        order[first], order[second] = order[second], order[first]
        return self.permute(order)

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> list[Self]:
        """Return parts along a dimension: of one size, the last perhaps smaller, or of each size.

        Raises:
            NestedIndexError: there is no such dimension.
            NestedShapeError: a size is not positive, or the sizes do not add up.
        """
        dim = self._dim(dim)
        total = self._batch[dim]
        if isinstance(split_size, Sequence):
            sizes = sizes_of(split_size)
            if min(sizes, default=-1) < 0 or sum(sizes) != total:
                raise NestedShapeError(f"sizes {sizes} do not add up to {total}, dimension {dim}")
        else:
            if split_size <= 0:
                raise NestedShapeError(f"split size {split_size} is not positive; give 1 or more")
            starts = range(0, max(total, 1), split_size)
            sizes = tuple(min(split_size, total - start) for start in starts)
        ends = np.cumsum(sizes).tolist()
        return [self._part(dim, end - n, end) for n, end in zip(sizes, ends, strict=True)]

    def _part(self, dim: int, start: int, end: int) -> Self:
        where = (*(slice(None),) * dim, slice(start, end))
        batch = (*self._batch[:dim], end - start, *self._batch[dim + 1 :])
        return self._mapped(lambda array: array[where], batch)

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """Return at most so many parts of equal size along a dimension, the last perhaps smaller.

        Raises:
            NestedIndexError: there is no such dimension.
            NestedShapeError: ``chunks`` is not positive.
        """
        if chunks <= 0:
            raise NestedShapeError(f"number of chunks {chunks} is not positive; give 1 or more")
        return self.split(max(1, -(-self._batch[self._dim(dim)] // chunks)), dim)

    def unbind(self, dim: int = 0) -> list[Self]:
        """Return what is at each place of a dimension, without that dimension.

        Raises:
            NestedIndexError: there is no such dimension.
        """
        dim = self._dim(dim)
        batch = self._batch[:dim] + self._batch[dim + 1 :]
        parts = [self._part(dim, i, i + 1) for i in range(self._batch[dim])]
        return [part._reshaped(batch) for part in parts]

    def gather(self, dim: int, index: Any) -> Self:
        """Return along a dimension what ``index`` names at each place of the others.

        Args:
            dim: The dimension of the batch that is chosen from.
            index: Integers with at most as many dimensions as the batch size; those but ``dim``
                have the size of the batch, or 1. Dimensions left out are taken whole, and are no
                part of the new batch size.

        Raises:
            NestedIndexError: there is no such dimension, or the index leaves it.
            NestedShapeError: the shape of the index does not go with the batch size.
        """
        dim = self._dim(dim)
        places = np.asarray(index)
        self._check_gather(dim, places)
        batch = (*self._batch[:dim], places.shape[dim], *self._batch[dim + 1 :])

        def change(array: Array) -> Array:
            wide = places.reshape(places.shape + (1,) * (array.ndim - places.ndim))
            shape = (*array.shape[:dim], places.shape[dim], *array.shape[dim + 1 :])
            return np.take_along_axis(array, np.broadcast_to(wide, shape), dim)

        new = self._mapped(change, batch)
        new._batch = batch[: places.ndim]
        return new

    def _check_gather(self, dim: int, places: Array) -> None:
        total = self._batch[dim]
        if places.dtype.kind not in "iu":
            raise NestedIndexError(f"gather got an index of {places.dtype}; give integers")
        others = zip(places.shape, self._batch, strict=False)
        if not dim < places.ndim <= len(self._batch) or any(
            n not in (1, size) for d, (n, size) in enumerate(others) if d != dim
        ):
            raise NestedShapeError(
                f"gather got an index of shape {places.shape}, which does not go with batch size "
                f"{self._batch} but for dimension {dim}"
            )
        if places.size and not 0 <= places.min() <= places.max() < total:
            raise NestedIndexError(f"gather leaves dimension {dim}; give 0 to {total - 1}")

    def contiguous(self) -> Self:
        """Return it with every array in one piece of memory; those that are so already are kept."""
        return self._mapped(lambda array: np.require(array, requirements="C"), self._batch)

    def is_contiguous(self) -> bool:
        """Return whether every array is in one piece of memory."""
        return all(array.flags.c_contiguous for _, array in self._leaves())
