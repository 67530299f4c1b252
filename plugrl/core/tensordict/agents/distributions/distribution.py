"""Distributions over actions: numbers of a network to actions, in torch and in NumPy.

A distribution is no network: its ``parameters`` are what a policy head puts out for an
observation. Collection samples in NumPy, where a small batch costs a fraction of what it costs in
torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


class ActionDistribution(ABC):
    """What is common to all distributions.

    ``params`` have shape ``[..., P]`` and actions ``[..., *action_shape]``; log-probabilities and
    entropies have one number for each whole action.

    Attributes:
        parameters: P, the numbers that describe a distribution.
        free_parameters: how many of them, the last ones, are weights of the policy head that do
            not depend on the observation.
        action_shape: of one action.
        action_dtype: ``int64`` or ``float32``.
    """

    parameters: int
    free_parameters: int = 0
    action_shape: tuple[int, ...] = ()
    action_dtype: np.dtype[Any] = np.dtype(np.int64)

    @abstractmethod
    def log_prob(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Log-probability, or log-density, of actions; ``[...]``."""

    @abstractmethod
    def entropy(self, params: torch.Tensor) -> torch.Tensor:
        """Entropy in nats; ``[...]``."""

    def log_prob_and_entropy(
        self, params: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both, for what a distribution can share between them."""
        return self.log_prob(params, action), self.entropy(params)

    def divergence(self, params: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Kullback-Leibler divergence from ``params`` to ``other`` in nats; ``[...]``.

        Raises:
            NotImplementedError: it has no closed form.
        """
        raise NotImplementedError(f"{type(self).__name__} has no divergence in closed form")

    def logits(self, params: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all choices, as of torch's distributions; ``[..., P]``.

        Raises:
            NotImplementedError: actions are not one of several choices.
        """
        raise NotImplementedError(f"{type(self).__name__} is not over one of several choices")

    @abstractmethod
    def rsample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions and their log-probabilities; both can be differentiated if actions are real."""

    def sample(
        self, params: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Actions, without gradient."""
        with torch.no_grad():
            return self.rsample(params, generator)[0]

    @abstractmethod
    def mode(self, params: torch.Tensor) -> torch.Tensor:
        """The likeliest actions; of squashed ones the image of the likeliest before squashing."""

    @abstractmethod
    def sample_numpy(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions and their log-probabilities for ``params [N, P]``, in new arrays."""

    @abstractmethod
    def mode_numpy(self, params: Array) -> Array:
        """The likeliest actions for ``params [N, P]``, in a new array."""

    @abstractmethod
    def uniform_numpy(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions of an agent that ignores what it sees, and their log-probabilities."""

    def clip(self, action: Array) -> Array:
        """Actions as an environment may take them: within the bounds of the space."""
        return action

    def _unflatten(self, action: torch.Tensor) -> torch.Tensor:
        """``[..., numbers of an action]`` to ``[..., *action_shape]``."""
        return action.reshape(*action.shape[:-1], *self.action_shape)
