"""From what an environment shows to what a network takes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
import torch
from torch.nn import functional

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.environment.vector_environment import space_text

Array = np.ndarray[Any, Any]


class Encoder(ABC):
    """Turns observations into real numbers of shape ``[..., *shape]``.

    Attributes:
        shape: of one encoded observation.
        is_plain: whether an observation in float32 is its own encoding.
    """

    shape: tuple[int, ...]
    is_plain: bool = False

    @abstractmethod
    def torch(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to ``[..., *shape]``."""

    @abstractmethod
    def numpy(self, observation: Array) -> Array:
        """``[N, *observation]`` to ``[N, *shape]``."""


class Real(Encoder):
    """Numbers as they are, in float32; images of bytes are divided by 255."""

    def __init__(self, shape: tuple[int, ...], scale: float | None = None) -> None:
        self.shape = shape
        self._scale = scale
        self.is_plain = scale is None

    def torch(self, observation: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        real = observation.to(torch.float32)
        return real if self._scale is None else real * self._scale

    def numpy(self, observation: Array) -> Array:
        """See the base class."""
        real = np.asarray(observation, np.float32)
        return real if self._scale is None else real * np.float32(self._scale)


class OneHot(Encoder):
    """One or more numbers, each as a one among zeros."""

    def __init__(self, counts: list[int], starts: list[int], scalar: bool) -> None:
        self.shape = (sum(counts),)
        self._counts, self._starts, self._scalar = counts, starts, scalar
        self._offsets = np.cumsum([0, *counts[:-1]]) - np.asarray(starts)

    def torch(self, observation: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        leading = observation.shape if self._scalar else observation.shape[:-1]
        flat = observation.long().reshape(*leading, len(self._counts))
        parts = [
            functional.one_hot(flat[..., i] - start, count)
            for i, (count, start) in enumerate(zip(self._counts, self._starts, strict=True))
        ]
        return torch.cat(parts, -1).to(torch.float32)

    def numpy(self, observation: Array) -> Array:
        """See the base class."""
        rows = observation.reshape(len(observation), -1) + self._offsets
        encoded = np.zeros((len(rows), *self.shape), np.float32)
        np.put_along_axis(encoded, rows, 1, 1)
        return encoded


def encoder_for(space: gymnasium.Space[Any]) -> Encoder:
    """How a network sees the observations of a space.

    Raises:
        ConfigError: it cannot.
    """
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return OneHot([int(space.n)], [int(space.start)], scalar=True)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return OneHot([int(n) for n in space.nvec], [int(s) for s in space.start], scalar=False)
    if isinstance(space, spaces.MultiBinary):
        return Real(tuple(space.shape))
    if isinstance(space, spaces.Box) and math.prod(space.shape) > 0:
        is_image = space.dtype == np.uint8 and len(space.shape) >= 2
        return Real(tuple(space.shape), 1 / 255 if is_image else None)
    raise ConfigError(
        f"observations of {space_text(space)} are not supported; wrap the environment so that "
        "they are a Box, such as with gymnasium.wrappers.FlattenObservation"
    )
