"""Tensors that may be spread over ranks, given or taken whole."""

from __future__ import annotations

import torch


def spread_like(like: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Spread a tensor that each rank has whole as ``like`` is spread.

    Raises:
        RuntimeError: the shapes differ.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return whole
    if like.shape != whole.shape:
        raise RuntimeError(f"size mismatch: {tuple(whole.shape)} for {tuple(like.shape)}")
    own = whole.to(device=like.device, dtype=like.dtype)
    return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def assign(target: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy a tensor into another, or this rank's part of it into this rank's part."""
    target.copy_(spread_like(target, whole))


def whole_tensor(value: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor; where it is spread over ranks, all of them must ask for it."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()  # type: ignore[no-any-return]


def storage_of(value: torch.Tensor) -> int:
    """Equal for tensors that are one, also where each rank has a part of them."""
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.untyped_storage()._cdata)
