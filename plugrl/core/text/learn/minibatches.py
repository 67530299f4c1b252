"""Passes over the trajectories of a step, each split into optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class PassesConfig:
    """How often a step learns from its trajectories."""

    epochs: int = described(1, "passes over the trajectories of a step")
    minibatches: int = described(1, "optimizer steps a pass")

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")


def splits(passes: Any, seed: Sequence[int], size: int) -> Iterator[np.ndarray[Any, Any]]:
    """The places, among ``size``, that each optimizer step learns from.

    Args:
        passes: a :class:`PassesConfig`.
        seed: what the order of every pass depends on, besides its number.
        size: how many things are split: trajectories, or units of them.
    """
    for epoch in range(passes.epochs if size else 0):
        order = np.random.default_rng([*seed, epoch]).permutation(size)
        yield from np.array_split(order, min(passes.minibatches, size))
