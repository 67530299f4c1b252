"""A device with little memory: layers of real models raise what its allocator would raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def run_out() -> None:
    """Raise what the allocator of a device raises."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmuch more")


class _Kept:
    """A tensor that a forward pass keeps for the backward pass, as long as that needs it."""

    def __init__(self, tensor: torch.Tensor, memory: dict[str, int], limit: int) -> None:
        self.tensor, self._memory = tensor, memory
        memory["used"] += tensor.nbytes
        if memory["used"] > limit:
            run_out()

    def __del__(self) -> None:
        self._memory["used"] -= self.tensor.nbytes


@contextmanager
def of_training(model: torch.nn.Module, limit: int) -> Iterator[dict[str, int]]:
    """Run out where the activations that are kept at once take more than ``limit`` bytes."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    memory = {"used": 0}

    def keep(tensor: torch.Tensor) -> Any:
        if tensor.untyped_storage().data_ptr() in weights:
            return tensor
        return _Kept(tensor, memory, limit)

    def give(kept: Any) -> torch.Tensor:
        return kept.tensor if isinstance(kept, _Kept) else kept

    with torch.autograd.graph.saved_tensors_hooks(keep, give):
        yield memory


@contextmanager
def of_sampling(model: torch.nn.Module, limit: int) -> Iterator[None]:
    """Run out where the keys of a layer take more than ``limit`` numbers."""

    def look(module: Any, *_: Any) -> None:
        keys = getattr(module, "slot_keys", None)
        if keys is not None and keys.numel() > limit:
            run_out()

    hooks = [module.register_forward_pre_hook(look) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
