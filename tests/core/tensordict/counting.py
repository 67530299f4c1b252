"""Environments whose every number can be told beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from plugrl.core.tensordict.environment.vector_environment import (
    AgentSpaces,
    AgentStep,
    VectorEnvironment,
)


class Counting(VectorEnvironment):
    """Each copy counts its steps: it sees the count and earns the number of its step.

    Args:
        lengths: after how many steps the episodes of each copy end.
        truncated: whether they are cut off instead of terminated.
        next_step: whether the step after an end is used to begin anew.
        agents: their names; all live through the same.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        truncated: bool = False,
        next_step: bool = False,
        agents: Sequence[str] = ("agent",),
        saveable: bool = True,
    ) -> None:
        self.num_envs = len(lengths)
        space = AgentSpaces(Box(-100, 100, (1,), np.float32), Discrete(2))
        self.spaces = dict.fromkeys(agents, space)
        self._lengths = np.array(lengths)
        self._truncated = truncated
        self._next_step = next_step
        self._saveable = saveable
        self.count = np.zeros(self.num_envs, np.int64)
        self._over = np.zeros(self.num_envs, bool)
        self.closed = False

    def _seen(self) -> np.ndarray:
        return self.count.astype(np.float32)[:, None]

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        self.count[:] = 0
        self._over[:] = False
        return {agent: self._seen() for agent in self.spaces}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        real = ~self._over
        self.count = np.where(self._over, 0, self.count + 1)
        ended = real & (self.count == self._lengths)
        reward = np.where(real, self.count, 0).astype(np.float32)
        final = self._seen() if ended.any() else None
        if self._next_step:
            self._over = ended
        else:
            self.count = np.where(ended, 0, self.count)
        nothing = np.zeros(self.num_envs, bool)
        step = AgentStep(
            observation=self._seen(),
            reward=reward,
            terminated=nothing if self._truncated else ended,
            truncated=ended if self._truncated else nothing,
            final_observation=final,
            real=real if self._next_step else None,
        )
        return dict.fromkeys(self.spaces, step)

    def state_dict(self) -> dict[str, Any] | None:
        if not self._saveable:
            return None
        return {"count": self.count.copy(), "over": self._over.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self._over = np.array(state["count"]), np.array(state["over"])

    def close(self) -> None:
        self.closed = True


class Always:
    """Chooses the same action each time."""

    def __init__(self, action: int) -> None:
        self._action = action

    def act(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = len(observation)
        return np.full(count, self._action), np.full(count, -0.5, np.float32)

    def best(self, observation: np.ndarray) -> np.ndarray:
        return self.act(observation)[0]

    def state_dict(self) -> dict[str, Any]:
        return {"action": self._action}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._action = state["action"]
