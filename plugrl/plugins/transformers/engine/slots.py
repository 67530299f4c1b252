"""Slots: room for the keys and values of rows that come and go while others are being decoded.

A row's states stand from the first column of its slot on, as many as it has tokens. Nothing is
padded, and nothing moves when a row joins or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from plugrl.core.errors import RunError
from plugrl.core.run.process.memory import free_bytes
from plugrl.plugins.transformers.memory_pool import SharedPool

#: Capacities are multiples of this, and of an eighth of the power of two below.
_STEP = 64
#: Rows that are copied at once when some move.
_MOVED = 8
#: Part of an accelerator's free memory that slots may take: training needs the rest.
_SHARE = 0.5


@dataclass(frozen=True)
class SlotShape:
    """What one token of a model takes: a key and a value in each layer."""

    layers: int
    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        numbers = self.layers * self.heads * (self.key_width + self.value_width)
        return numbers * self.dtype.itemsize


class Slots:
    """Keys and values, [layers, rows, heads, capacity, width] each.

    Attributes:
        generation: changes whenever the tensors are elsewhere in memory.
        layout: changes whenever they are others.
        plan: what a body noted for its next steps.
        memory: where the tensors lie; None: anywhere.
    """

    def __init__(self, shape: SlotShape) -> None:
        self.shape = shape
        self.memory: SharedPool | None = None
        self._lent_from: list[int] = []
        self.generation = self.layout = 0
        self.plan: Any = None
        self._filling: tuple[torch.Tensor, torch.Tensor] | None = None
        self.release()

    def release(self) -> None:
        """Give the memory back."""
        self.rows = self.capacity = 0
        self._lent_from = []
        self.generation += 1
        empty = torch.empty(0, dtype=self.shape.dtype, device=self.shape.device)
        self._pools = (empty, empty)
        self._view(0, 0)

    def lend(self) -> None:
        """Let others have the memory until the next :meth:`reserve`; what is stored is lost."""
        if not self._lent_from:
            self._lent_from = self._addresses()
            for pool in self._pools:
                pool.untyped_storage().resize_(0)

    def reserve(self, rows: int, capacity: int, kept: int) -> None:
        """Make room for so many rows of so many tokens; the first ``kept`` rows stay.

        Raises:
            RunError: an accelerator has not the memory.
        """
        try:
            self._reserve(rows, capacity, kept)
        except torch.OutOfMemoryError as error:
            wanted = rows * capacity * self.shape.token_bytes / 2**30
            raise RunError(
                f"the keys and values of {rows} sequences of {capacity} tokens take {wanted:.1f} "
                f"GiB, more than {self.shape.device} has left; lower "
                "models.NAME.inference.max_batch_size or rollout_worker.max_response_length"
            ) from error

    def _reserve(self, rows: int, capacity: int, kept: int) -> None:
        if rows <= self.rows and capacity <= self.capacity:
            self._take_back()
            return
        if kept:
            rows, capacity = max(rows, self.rows), max(capacity, self.capacity)
        sizes = self._sizes(rows, capacity)
        if not kept and all(s <= len(p) for s, p in zip(sizes, self._pools, strict=True)):
            # Other numbers of rows and tokens in the same memory.
            self._take_back()
            self._view(rows, capacity)
            return
        old, used = (self.keys, self.values), self.capacity
        if not kept:
            self.release()
            old = (self.keys, self.values)
        with self._allocating():
            # Zeros: what is not written yet is masked, and a masked NaN would still be one.
            self._pools = tuple(  # type: ignore[assignment]
                torch.zeros(size, dtype=self.shape.dtype, device=self.shape.device)
                for size in sizes
            )
        self.generation += 1
        self._view(rows, capacity)
        if kept:
            for new, before in zip((self.keys, self.values), old, strict=True):
                new[:, :kept, :, :used] = before[:, :kept]

    def _take_back(self) -> None:
        if not self._lent_from:
            return
        # Of two free places of one size the allocator gives the lower one first.
        for _, pool in sorted(zip(self._lent_from, self._pools, strict=True), key=itemgetter(0)):
            with self._allocating():
                pool.untyped_storage().resize_(pool.nbytes)
            pool.zero_()
        if self._addresses() != self._lent_from:
            # Something that was made meanwhile is still there.
            self.generation += 1
        self._lent_from = []

    def _addresses(self) -> list[int]:
        return [pool.data_ptr() for pool in self._pools]

    def _allocating(self) -> AbstractContextManager[None]:
        return nullcontext() if self.memory is None else self.memory.allocating()

    def most_rows(self, capacity: int) -> int:
        """How many rows of so many tokens there is memory for, at least one."""
        device = self.shape.device
        if device.type != "cuda":
            return 2**31
        free = free_bytes(str(device))
        held = 0 if self._lent_from else sum(pool.nbytes for pool in self._pools)
        return max(1, int((free + held) * _SHARE) // (capacity * self.shape.token_bytes))

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row ``order[i]`` is; what moves comes from behind the new end."""
        moves = [(old, new) for new, old in enumerate(order) if old != new]
        device = self.shape.device
        for start in range(0, len(moves), _MOVED):
            old, new = (
                torch.tensor(each, device=device)
                for each in zip(*moves[start : start + _MOVED], strict=True)
            )
            for states in (self.keys, self.values):
                states.index_copy_(1, new, states.index_select(1, old))

    def fill_from(self, picks: Sequence[int], places: Sequence[int]) -> None:
        """Say which prompts of the next pass go to which rows; one may go to several."""
        device = self.shape.device
        self._filling = torch.tensor(picks, device=device), torch.tensor(places, device=device)

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the states of prompts, [prompts, heads, tokens, width], as said before."""
        assert self._filling is not None
        picks, places = self._filling
        if len(picks):
            for mine, theirs in ((self.keys, keys), (self.values, values)):
                own = mine[layer].narrow(2, 0, theirs.shape[2])
                own.index_copy_(0, places, theirs.index_select(0, picks))

    def _sizes(self, rows: int, capacity: int) -> tuple[int, int]:
        count = self.shape.layers * rows * self.shape.heads * capacity
        return count * self.shape.key_width, count * self.shape.value_width

    def _view(self, rows: int, capacity: int) -> None:
        shape, sizes = self.shape, self._sizes(rows, capacity)
        widths = (shape.key_width, shape.value_width)
        self.keys, self.values = (
            pool[:size].view(shape.layers, rows, shape.heads, capacity, width)
            for pool, size, width in zip(self._pools, sizes, widths, strict=True)
        )
        self.rows, self.capacity = rows, capacity
        self.layout += 1


def rounded_capacity(tokens: int) -> int:
    """A capacity for at least so many tokens: one of few, within an eighth of it."""
    step = max(_STEP, 2 ** ((tokens - 1).bit_length() - 4)) if tokens > 1 else _STEP
    return -(-tokens // step) * step
