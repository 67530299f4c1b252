"""A pool of device memory that decoding and training use in turns.

In the mode ``sync`` nothing is sampled while the model is trained, so that the activations of the
training pass may lie where the engine keeps keys and values. Both come from one pool of PyTorch's
allocator. The slots of the engine are as long as its first segment, so that they get their
addresses back, which the captured decode steps know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from weakref import WeakSet

import torch


class Lender(Protocol):
    """Has memory of the pool that it can do without at times."""

    def lend_memory(self) -> None:
        """Give it up, unless it is in use."""


class SharedPool:
    """Memory of the current CUDA device, for an engine and the training of its model."""

    def __init__(self) -> None:
        self._pool = torch.cuda.MemPool()
        self._lenders: WeakSet[Lender] = WeakSet()

    def add(self, lender: Lender) -> None:
        """Ask ``lender`` for its memory whenever training needs some."""
        self._lenders.add(lender)

    def allocating(self) -> AbstractContextManager[None]:
        """What this thread allocates lies here; other threads, as those of backward, do not."""
        return torch.cuda.use_mem_pool(self._pool)  # type: ignore[no-any-return]

    @contextmanager
    def for_training(self) -> Iterator[None]:
        """As :meth:`allocating`, in the memory that lenders do without too."""
        for lender in self._lenders:
            lender.lend_memory()
        with self.allocating():
            yield
