"""An environment in which a speaker tells a listener a bit that only the speaker sees."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium
import numpy as np

from plugrl.core.tensordict.environment.vector_environment import (
    AgentSpaces,
    AgentStep,
    VectorEnvironment,
)


class Speaking(VectorEnvironment):
    """The speaker says a number, the listener guesses the bit; both earn 1 for a right guess.

    Between the two there are ``pauses`` steps in which nobody acts and each agent loses
    ``price``. What the speaker sees in steps of others is -1, and so is the last observation.
    """

    def __init__(
        self, num_envs: int = 4, pauses: int = 0, price: float = 0.0, *, staggered: bool = False
    ) -> None:
        self.num_envs, self.pauses, self.price = num_envs, pauses, price
        self.staggered = staggered
        sees, does = gymnasium.spaces.Box(-2, 2, (1,)), gymnasium.spaces.Discrete(2)
        self.spaces = {name: AgentSpaces(sees, does) for name in ("speaker", "listener")}
        self.taken: list[dict[str, np.ndarray]] = []

    def _seen(self) -> dict[str, np.ndarray]:
        speaks, listens = self.acting().values()
        told = {
            "speaker": np.where(speaks, 2 * self.bit - 1, -1),
            "listener": np.where(listens, 2 * self.said - 1, -1),
        }
        return {name: np.float32(value)[:, None] for name, value in told.items()}

    def acting(self) -> dict[str, np.ndarray]:
        return {"speaker": self.at == 0, "listener": self.at == self.pauses + 1}

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        self.random = np.random.default_rng(seed)
        self.bit = self.random.integers(0, 2, self.num_envs)
        self.said = np.zeros(self.num_envs, int)
        # Copies that begin at different moments are there at all moments when a batch ends.
        self.at = np.arange(self.num_envs) * self.staggered % (self.pauses + 2)
        return self._seen()

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        self.taken.append({name: action.copy() for name, action in actions.items()})
        self.said = np.where(self.at == 0, actions["speaker"], self.said)
        ended = self.at == self.pauses + 1
        paused = ~ended & (self.at > 0)
        right = ended & (actions["listener"] == self.bit)
        reward = right - self.price * paused
        self.at = np.where(ended, 0, self.at + 1)
        self.bit = np.where(ended, self.random.integers(0, 2, self.num_envs), self.bit)
        never = np.zeros(self.num_envs, bool)
        final = np.full((self.num_envs, 1), -1, np.float32)
        return {
            name: AgentStep(seen, reward.astype(float), ended, never, final)
            for name, seen in self._seen().items()
        }
