"""How a policy that learns from old steps chooses actions while it collects new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.acting import Actor
    from plugrl.core.tensordict.agents.distributions.continuous import SquashedNormal
    from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution

Chosen = tuple[np.ndarray, "np.ndarray | None"]


class Explorer:
    """Acts at random at first, then as the policy draws.

    Args:
        actor: the policy.
        distribution: of the policy's actions, which says what an even draw is.
        rng: the generator of what is drawn here.
        learning_starts: the steps at random, over all environments.

    Attributes:
        frames: the real steps that were taken so far, over all environments; whoever takes them
            sets it.
        passed: those, and the steps that only began episodes: what shares of a run are of.
    """

    def __init__(
        self,
        actor: Actor,
        distribution: ActionDistribution,
        rng: np.random.Generator,
        learning_starts: int,
    ) -> None:
        self.actor = actor
        self.distribution = distribution
        self.rng = rng
        self.learning_starts = learning_starts
        self.frames = 0
        self.passed = 0

    def act(self, observation: np.ndarray) -> Chosen:
        """Actions ``[N, *action]`` for ``observation [N, *observation]``; densities or None."""
        if self.frames < self.learning_starts:
            return self.distribution.uniform_numpy(len(observation), self.rng)[0], None
        return self.explore(observation)

    def explore(self, observation: np.ndarray) -> Chosen:
        """The policy's own choice, with what makes it vary; here nothing is added."""
        return self.actor.act(observation)

    def best(self, observation: np.ndarray) -> np.ndarray:
        """The policy's best actions."""
        return self.actor.best(observation)

    def state_dict(self) -> dict[str, Any]:
        """Generators and the step count."""
        return {
            "actor": self.actor.state_dict(),
            "rng": self.rng.bit_generator.state,
            "frames": self.frames,
            "passed": self.passed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.actor.load_state_dict(state["actor"])
        self.rng.bit_generator.state = state["rng"]
        self.frames = int(state["frames"])
        # Before these were counted apart, all steps were taken for real ones.
        self.passed = int(state.get("passed", self.frames))


class EpsilonGreedy(Explorer):
    """Takes a random action with a probability that falls in a straight line, else the best one.

    Args:
        initial: the probability at first.
        final: the probability from ``frames`` steps on.
        over: the steps over which it falls, a share of those of the run.
        explorer: arguments of :class:`Explorer`.
    """

    def __init__(self, *explorer: Any, initial: float, final: float, over: float) -> None:
        super().__init__(*explorer)
        self._initial, self._final, self._over = initial, final, over

    @property
    def epsilon(self) -> float:
        """The probability of a random action now."""
        done = min(1.0, self.passed / self._over) if self._over > 0 else 1.0
        return self._initial + done * (self._final - self._initial)

    def explore(self, observation: np.ndarray) -> Chosen:
        """Best actions, of which some are replaced."""
        at_random = self.rng.random(len(observation)) < self.epsilon
        if at_random.all():
            return self.distribution.uniform_numpy(len(observation), self.rng)[0], None
        action = self.actor.best(observation)
        if at_random.any():
            action = action.copy()
            count = int(at_random.sum())
            action[at_random] = self.distribution.uniform_numpy(count, self.rng)[0]
        return action, None


class GaussianNoise(Explorer):
    """Adds normal noise to the best action.

    Args:
        deviation: of the noise, in units of half the range of an action.
        explorer: arguments of :class:`Explorer`; actions are bounded.
    """

    distribution: SquashedNormal

    def __init__(self, *explorer: Any, deviation: float) -> None:
        super().__init__(*explorer)
        self._deviation = deviation * (self.distribution.high - self.distribution.low) / 2

    def explore(self, observation: np.ndarray) -> Chosen:
        """Best actions with noise, within the bounds."""
        action = self.actor.best(observation)
        noise = self.rng.standard_normal(action.shape, np.float32) * self._deviation
        return self.distribution.clip(action + noise), None
