"""Distributions over actions: numbers of a network to actions, in torch and in NumPy.

``distribution_for`` picks one by the space of the actions. A distribution is no network: its
``parameters`` are what a policy head puts out for an observation. Collection samples in NumPy,
where a small batch costs a fraction of what it costs in torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Literal

import gymnasium
import numpy as np
import torch

from plugrl.core.errors import ConfigError

Array = np.ndarray[Any, Any]
#: Widths of bounds within which float32 can scale actions and their gradients.
_WIDTHS = (1e-30, 1e30)
#: Whether continuous actions are bent into their bounds by a tanh, and then drawn or certain.
Squash = bool | Literal["deterministic"]


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

    def torchrl(self) -> tuple[type, dict[str, Any], list[str]]:
        """Class, keyword arguments and input keys for TorchRL's ``ProbabilisticActor``."""
        from plugrl.core.tensordict.agents.operators import ParametersDistribution

        return ParametersDistribution, {"of": self}, ["params"]


def space_text(space: gymnasium.Space[Any]) -> str:
    """A space on one line."""
    return " ".join(str(space).split())


def distribution_for(space: gymnasium.Space[Any], *, squash: Squash = False) -> ActionDistribution:
    """The distribution over the actions of a space.

    Args:
        space: ``Discrete``, ``MultiDiscrete``, ``MultiBinary`` or ``Box`` of real numbers.
        squash: bound the actions of a ``Box`` by a tanh; by default they are those of a normal
            distribution, which environments clip. ``"deterministic"``: nothing is drawn.

    Raises:
        ConfigError: there is none for such a space.
    """
    from plugrl.core.tensordict.agents.continuous import Normal, SquashedNormal
    from plugrl.core.tensordict.agents.discrete import Bernoulli, Categorical, MultiCategorical

    spaces = gymnasium.spaces
    if math.prod(space.shape or ()) == 0:
        raise ConfigError(
            f"actions of {space_text(space)} consist of nothing; mend the action space"
        )
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(np.asarray(space.nvec), np.asarray(space.start))
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(tuple(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        if not squash:
            return Normal(low, high)
        wrong = _not_squashable(low, high)
        if wrong is None:
            if squash == "deterministic":
                from plugrl.core.tensordict.agents.deterministic import SquashedPoint

                return SquashedPoint(low, high)
            return SquashedNormal(low, high)
        raise ConfigError(
            f"actions of {space_text(space)} cannot be squashed into bounds that are "
            f"{wrong}; let the environment take actions from -1 to 1 (scenario.actions=rescale "
            "does it within finite bounds), or take a trainer that does not squash"
        )
    raise ConfigError(
        f"actions of {space_text(space)} are not supported; wrap the environment so that they are "
        "Discrete, MultiDiscrete, MultiBinary or a Box of real numbers"
    )


def _not_squashable(low: Array, high: Array) -> str | None:
    """What is wrong with bounds that a tanh cannot bend actions into; None: nothing."""
    if not (low < high).all():
        return "equal or the wrong way round"
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "not finite"
    width = high.astype(np.float64) - low
    if (width > _WIDTHS[1]).any():
        return f"further apart than {_WIDTHS[1]:g}"
    return f"closer than {_WIDTHS[0]:g}" if (width < _WIDTHS[0]).any() else None
