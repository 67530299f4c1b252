"""Running means and variances, by which observations and rewards are scaled.

Numbers that scale a batch stay as they are while it is collected and are renewed between batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces


class RunningStatistics:
    """Mean and variance of all rows so far, equal whatever batches they came in.

    Source: Chan, Golub and LeVeque (1979), pairwise merging of Welford's sums, in float64.

    Args:
        shape: of one row.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(shape)
        self.count = 0
        self.mean = np.zeros(self.shape)
        self._squares = np.zeros(self.shape)

    @property
    def variance(self) -> np.ndarray:
        """``[*shape]``, of all rows; ones before the first row."""
        return self._squares / self.count if self.count else np.ones(self.shape)

    def update(self, values: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Take in ``values [..., *shape]``; of these only rows where ``valid [...]`` is true."""
        rows = values[valid] if valid is not None else values
        rows = rows.reshape(-1, *self.shape).astype(np.float64)
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        squares = np.square(rows - mean).sum(axis=0)
        total = self.count + len(rows)
        apart = mean - self.mean
        self._squares = self._squares + squares + apart**2 * (self.count * len(rows) / total)
        self.mean = self.mean + apart * (len(rows) / total)
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return {
            "count": self.count,
            "mean": np.array(self.mean),
            "squares": np.array(self._squares),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            RunError: it belongs to rows of another shape.
        """
        shape = tuple(state["mean"].shape)
        if shape != self.shape:
            raise RunError(
                f"saved statistics are of shape {list(shape)}, the scenario gives "
                f"{list(self.shape)}; resume with the scenario of the run"
            )
        self.count = int(state["count"])
        self.mean = np.array(state["mean"])
        self._squares = np.array(state["squares"])


class ObservationNormaliser:
    """Scales observations to mean 0 and variance 1; before the first update it changes nothing.

    Args:
        shape: of one observation.
        clip: bound of the scaled numbers.
        epsilon: added to the variance.
    """

    def __init__(self, shape: Sequence[int], clip: float = 10.0, epsilon: float = 1e-8) -> None:
        self.statistics = RunningStatistics(shape)
        self.clip = clip
        self._epsilon = epsilon
        self._renew()

    @property
    def mean_and_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted and what the difference is multiplied by, ``[*shape]`` in float32."""
        scale = np.broadcast_to(self._scale, self._mean.shape)
        return self._mean.copy(), np.array(scale, np.float32)

    def _renew(self) -> None:
        scale = 1 / np.sqrt(self.statistics.variance + self._epsilon)
        self._mean = self.statistics.mean.astype(np.float32)
        self._scale = scale.astype(np.float32) if self.statistics.count else np.float32(1)

    def normalise(self, observation: np.ndarray) -> np.ndarray:
        """The scaled copy of ``observation [..., *shape]``, in float32."""
        scaled: np.ndarray = np.subtract(observation, self._mean, dtype=np.float32)
        scaled *= self._scale
        if self.statistics.count:
            np.clip(scaled, -self.clip, self.clip, out=scaled)
        return scaled

    def update(self, observation: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Take in unscaled ``observation [..., *shape]`` where ``valid [...]``; between batches."""
        self.statistics.update(observation, valid)
        self._renew()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return self.statistics.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; RunError if the shape is another one."""
        self.statistics.load_state_dict(state)
        self._renew()


class RewardNormaliser:
    """Divides rewards by the deviation of the discounted return, over all environments.

    The return of a step is its reward and what went before it in its episode, discounted.

    Args:
        num_rows: environments (times agents) that rewards are given for.
        gamma: the discount.
        clip: bound of the scaled rewards.
        epsilon: added to the variance.
    """

    def __init__(
        self, num_rows: int, gamma: float, clip: float = 10.0, epsilon: float = 1e-8
    ) -> None:
        self.statistics = RunningStatistics()
        self._returns = np.zeros(num_rows)
        self._gamma = gamma
        self._clip = clip
        self._epsilon = epsilon

    def begin(self) -> None:
        """All episodes begin anew: what went before counts in no return."""
        self._returns = np.zeros_like(self._returns)

    def normalise(self, reward: np.ndarray) -> np.ndarray:
        """The scaled copy of ``reward``, in float32; unchanged before the first update."""
        if not self.statistics.count:
            return reward.astype(np.float32)
        deviation = np.sqrt(self.statistics.variance + self._epsilon)
        return np.clip(reward / deviation, -self._clip, self._clip).astype(np.float32)

    def update(self, reward: np.ndarray, done: np.ndarray, valid: np.ndarray | None = None) -> None:
        """Take in unscaled rewards ``[T, num_rows]`` in the order in which they came.

        Args:
            reward: ``[T, num_rows]``.
            done: ``[T, num_rows]``, the episode ended in this step; returns begin anew behind it.
            valid: ``[T, num_rows]``; steps where it is false are passed over. None: all are valid.
        """
        returns = np.empty(reward.shape)
        taking_part = np.ones(reward.shape, dtype=bool) if valid is None else valid
        carried = self._returns
        for step, (earned, ended, real) in enumerate(zip(reward, done, taking_part, strict=True)):
            carried = np.where(real, self._gamma * carried + earned, carried)
            returns[step] = carried
            carried = np.where(ended, 0.0, carried)
        self._returns = carried
        self.statistics.update(returns, taking_part)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return {**self.statistics.state_dict(), "returns": self._returns.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            RunError: it belongs to another number of environments.
        """
        if len(state["returns"]) != len(self._returns):
            raise RunError(
                f"saved returns are of {len(state['returns'])} environments, the scenario has "
                f"{len(self._returns)}; resume with the scenario of the run"
            )
        self.statistics.load_state_dict(state)
        self._returns = np.array(state["returns"])


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
