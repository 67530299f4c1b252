"""Tensors on their way between driver and ranks, as arrays, which Ray hands over without copies."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class Packed:
    """A tensor: its bytes, which are shared memory and must not be written to."""

    data: npt.NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]


def pack(value: Any) -> Any:
    """A dict, perhaps of dicts, with its tensors packed; anything else as it is."""
    made: dict[tuple[Any, ...], Packed] = {}

    def packed(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: packed(each) for key, each in item.items()}
        if not isinstance(item, torch.Tensor):
            return item
        shape = tuple(item.shape)
        # Weights that are one stay one.
        place = (item.data_ptr() or id(item), item.dtype, shape, item.stride())
        if place not in made:
            flat = item.detach().cpu().contiguous().reshape(-1)
            made[place] = Packed(flat.view(torch.uint8).numpy(), item.dtype, shape)
        return made[place]

    return packed(value) if isinstance(value, dict) else value


def unpack(value: Any, *, shared: bool = False) -> Any:
    """What was packed, in memory of its own.

    Args:
        value: what :func:`pack` gave.
        shared: leave it where it is instead, for those who only read it.
    """
    made: dict[int, torch.Tensor] = {}

    def unpacked(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: unpacked(each) for key, each in item.items()}
        if not isinstance(item, Packed):
            return item
        if id(item) not in made:
            data = item.data if shared else item.data.copy()
            made[id(item)] = _tensor(data, item.dtype).reshape(item.shape)
        return made[id(item)]

    return unpacked(value) if isinstance(value, dict) else value


def _tensor(data: npt.NDArray[np.uint8], dtype: torch.dtype) -> torch.Tensor:
    if not len(data):
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        # That what is shared is not to be written to.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(data).view(dtype)
