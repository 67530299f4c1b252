"""Small games with known best play, as environments of two agents."""

from collections.abc import Mapping

import numpy as np
from gymnasium.spaces import Box, Discrete

from plugrl.core.tensordict.environment.vector_environment import (
    AgentSpaces,
    AgentStep,
    VectorEnvironment,
)

#: Whoever commits to the second row gets the column player to choose the second column and earns
#: 3; where both learn alone, the first row, which is better against every column, ends with 2.
COMMITMENT = ([[2.0, 4.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]])


class MatrixGame(VectorEnvironment):
    """Both choose at once, and each gets its entry of a matrix; an episode is one step."""

    def __init__(self, first, second, num_envs=64):
        self.num_envs = num_envs
        self._payoffs = {"first": np.array(first), "second": np.array(second)}
        rows, columns = self._payoffs["first"].shape
        seen = Box(0, 1, (1,), np.float32)
        self.spaces = {
            "first": AgentSpaces(seen, Discrete(rows)),
            "second": AgentSpaces(seen, Discrete(columns)),
        }

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        return {name: np.ones((self.num_envs, 1), np.float32) for name in self.spaces}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        chosen = actions["first"], actions["second"]
        ended, seen = np.ones(self.num_envs, bool), np.ones((self.num_envs, 1), np.float32)
        return {
            name: AgentStep(
                seen, payoff[chosen].astype(np.float32), ended, np.zeros_like(ended), seen
            )
            for name, payoff in self._payoffs.items()
        }


class SequentialGame(MatrixGame):
    """The same game in turns: the first chooses, the second sees nothing of it and chooses."""

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        self._second = np.arange(self.num_envs) < 0
        return super().reset(seed)

    def acting(self) -> Mapping[str, np.ndarray]:
        return {"first": ~self._second, "second": self._second.copy()}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        ended = self._second.copy()
        if not ended.any():
            self._chosen = actions["first"].copy()
        given = super().step({"first": self._chosen, "second": actions["second"]})
        for step in given.values():
            step.reward = step.reward * ended
            step.terminated = ended
        self._second = ~ended
        return given
