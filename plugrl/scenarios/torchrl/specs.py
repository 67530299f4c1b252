"""TorchRL's specs as spaces of gymnasium, and tensors as arrays and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from plugrl.core.errors import ConfigError


@dataclass(frozen=True)
class Converter:
    """A spec without batch dimensions as a space, and what goes between them.

    Attributes:
        spec: of TorchRL.
        space: of gymnasium.
    """

    spec: TensorSpec
    space: spaces.Space[Any]

    def array(self, tensor: torch.Tensor, lead: tuple[int, ...]) -> np.ndarray:
        """A tensor ``[*lead, *spec]`` as an array of the space, ``[*lead, *space]``."""
        tensor = tensor.detach().cpu()
        if isinstance(self.spec, OneHot):
            tensor = tensor.to(torch.uint8).argmax(-1)
        elif isinstance(self.spec, MultiOneHot):
            parts = tensor.to(torch.uint8).split(list(self.spec.nvec), dim=-1)
            tensor = torch.stack([part.argmax(-1) for part in parts], dim=-1)
        elif tensor.dtype is torch.bfloat16:
            tensor = tensor.float()
        array: np.ndarray = tensor.numpy()
        return array.reshape(*lead, *(self.space.shape or ()))

    def tensor(self, array: np.ndarray, lead: tuple[int, ...]) -> torch.Tensor:
        """An array of the space as a tensor of the spec."""
        spec = self.spec
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if isinstance(spec, OneHot):
            tensor = torch.nn.functional.one_hot(tensor.long(), spec.space.n)
        elif isinstance(spec, MultiOneHot):
            columns = tensor.long().unbind(-1)
            tensor = torch.cat(
                [
                    torch.nn.functional.one_hot(column, n)
                    for column, n in zip(columns, spec.nvec, strict=True)
                ],
                dim=-1,
            )
        return tensor.to(device=spec.device, dtype=spec.dtype).reshape((*lead, *spec.shape))


def converter(spec: Any, what: str) -> Converter:
    """How a spec without batch dimensions is converted.

    Args:
        spec: of TorchRL.
        what: whose it is, for messages.

    Raises:
        ConfigError: it is of a kind that networks cannot take.
    """
    if getattr(spec, "mask", None) is not None:
        raise ConfigError(
            f"{what} forbids some choices with a mask, which policies here do not know; let the "
            "environment take every choice"
        )
    space = _space(spec)
    if space is None or any(length < 0 for length in spec.shape):
        raise ConfigError(
            f"{what} is a {type(spec).__name__} of shape {tuple(spec.shape)}, which networks "
            "cannot take; convert it with a transform of yours in scenario.transforms to Bounded, "
            "Unbounded, Categorical or OneHot of one dimension"
        )
    return Converter(spec, space)


def _space(spec: Any) -> spaces.Space[Any] | None:
    shape = tuple(getattr(spec, "shape", ()))
    if isinstance(spec, MultiOneHot | MultiCategorical):
        return spaces.MultiDiscrete([int(n) for n in spec.nvec])
    if isinstance(spec, OneHot):
        return spaces.Discrete(int(spec.space.n)) if len(shape) == 1 else None
    if isinstance(spec, Binary):
        return spaces.MultiBinary(shape)
    if isinstance(spec, Categorical):
        return _choices(int(spec.space.n), shape)
    if isinstance(spec, Bounded | Unbounded):
        return _box(spec, shape)
    return None


def _choices(n: int, shape: tuple[int, ...]) -> spaces.Space[Any] | None:
    if n < 1:
        return None
    count = int(np.prod(shape))
    return spaces.Discrete(n) if count == 1 else spaces.MultiDiscrete(np.full(shape, n))


def _box(spec: Any, shape: tuple[int, ...]) -> spaces.Space[Any] | None:
    if spec.dtype is torch.bool or spec.dtype.is_complex:
        return None
    dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype if spec.dtype != torch.bfloat16 else None
    dtype = np.dtype(np.float32) if dtype is None else dtype
    if isinstance(spec, Bounded):
        low, high = (_bound(each, shape) for each in (spec.space.low, spec.space.high))
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    if dtype.kind != "f":
        # Whole numbers without bounds: networks take them as numbers.
        dtype = np.dtype(np.float32)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)


def _bound(bound: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(torch.as_tensor(bound).detach().cpu().float().numpy(), shape)
