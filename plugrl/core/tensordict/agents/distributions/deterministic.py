"""Policies that leave nothing to chance."""

from __future__ import annotations

import numpy as np
import torch

from plugrl.core.tensordict.agents.distributions.continuous import SquashedNormal
from plugrl.core.tensordict.agents.distributions.distribution import Array


class SquashedPoint(SquashedNormal):
    """One action within bounds; params are numbers that a tanh bends into them.

    It is drawn with certainty: log-probabilities and entropies are 0.
    """

    def __init__(self, low: Array, high: Array) -> None:
        super().__init__(low, high)
        self.parameters = self.size

    def _moments(self, params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return params, torch.zeros_like(params)

    def _moments_numpy(self, params: Array) -> tuple[Array, Array]:
        return params, np.zeros_like(params)

    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return params.new_zeros(params.shape[:-1])

    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        return params.new_zeros(params.shape[:-1])

    def divergence(self, params: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See the base class.

        Raises:
            NotImplementedError: always, as it is infinite between different actions.
        """
        raise NotImplementedError("actions that are certain have no finite divergence")

    def rsample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See the base class."""
        return self.mode(params), params.new_zeros(params.shape[:-1])

    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """See the base class."""
        return self.mode_numpy(params), np.zeros(len(params), np.float32)
