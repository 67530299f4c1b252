"""The normalisers of all policies of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.tensordict.collect.normalisation import ObservationNormaliser, RewardNormaliser

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces


def scaled_shape(spaces: AgentSpaces) -> tuple[int, ...] | None:
    """The shape of observations that may be scaled; None: those with named parts may not."""
    return None if spaces.layout is not None else spaces.observation.shape or ()


class Normalisers:
    """Scales what the agents of each policy see and earn, or leaves it as it is.

    Args:
        shapes: of one observation, by policy; None: those of this policy are never scaled.
        rows: agents times environments, by policy.
        observations: whether observations are scaled.
        rewards: whether rewards are scaled.
        gamma: the discount of the return by whose deviation rewards are divided.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...] | None],
        rows: Mapping[str, int],
        *,
        observations: bool,
        rewards: bool,
        gamma: float,
    ) -> None:
        self._observations = {
            name: ObservationNormaliser(shape)
            for name, shape in shapes.items()
            if observations and shape is not None
        }
        self._rewards = {
            name: RewardNormaliser(count, gamma) for name, count in rows.items() if rewards
        }

    @property
    def used(self) -> bool:
        """Whether anything is scaled."""
        return bool(self._observations or self._rewards)

    def of_observations(self, policy: str) -> ObservationNormaliser | None:
        """What scales the observations of a policy; None: they are left as they are."""
        return self._observations.get(policy)

    def observation(self, policy: str, observation: np.ndarray) -> np.ndarray:
        """``[..., *observation]`` scaled with the statistics of earlier batches."""
        normaliser = self._observations.get(policy)
        return observation if normaliser is None else normaliser.normalise(observation)

    def reward(self, policy: str, reward: np.ndarray) -> np.ndarray:
        """``[T, R]`` scaled with the statistics of earlier batches."""
        normaliser = self._rewards.get(policy)
        return reward if normaliser is None else normaliser.normalise(reward)

    def update(
        self,
        policy: str,
        observation: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        real: np.ndarray,
    ) -> None:
        """Take in a batch ``[T, R]`` as the environments gave it."""
        if policy in self._observations:
            self._observations[policy].update(observation, real)
        if policy in self._rewards:
            self._rewards[policy].update(reward, done, real)

    def begin(self) -> None:
        """All episodes begin anew."""
        for normaliser in self._rewards.values():
            normaliser.begin()

    def state_dict(self) -> dict[str, Any]:
        """All statistics."""
        return {
            "observations": {k: v.state_dict() for k, v in self._observations.items()},
            "rewards": {k: v.state_dict() for k, v in self._rewards.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, rewards: bool = True) -> None:
        """Take back what :meth:`state_dict` gave; ``rewards`` false: those of observations."""
        for name, held in state["observations"].items():
            self._observations[name].load_state_dict(held)
        if rewards:
            for name, held in state["rewards"].items():
                self._rewards[name].load_state_dict(held)
