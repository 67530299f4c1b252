"""Losses that rewards have spoilt are laid to the rewards, by every trainer that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from plugrl.core.errors import NonFiniteError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.environment.vector_environment import (
    AgentSpaces,
    AgentStep,
    VectorEnvironment,
)

FIRST = 3


class Overpaid(VectorEnvironment):
    """Endless; from the third step on, the second agent gets ``paid`` in the second copy."""

    num_envs = 4

    def __init__(self, action: Any, paid: float) -> None:
        spaces = AgentSpaces(Box(-1, 1, (2,), np.float32), action)
        self.spaces, self._paid, self._steps = {"left": spaces, "right": spaces}, paid, 0

    def _seen(self) -> dict[str, np.ndarray]:
        return {name: np.zeros((self.num_envs, 2), np.float32) for name in self.spaces}

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        return self._seen()

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        self._steps += 1
        off, seen = np.zeros(self.num_envs, bool), self._seen()
        rewards = {name: np.ones(self.num_envs, np.float32) for name in self.spaces}
        if self._steps >= FIRST:
            rewards["right"][1] = self._paid
        return {n: AgentStep(seen[n], rewards[n], off, off, None, ~off) for n in self.spaces}


SQUARED = ("vanilla_ppo", "a2c", "spg", "sac", "td3")
CASES = [(name, 1e30) for name in SQUARED]
CASES += [
    (name, paid)
    # Their losses grow as rewards do, so that 1e30 is no fault of theirs.
    for name in (*SQUARED, "reinforce", "dqn")
    for paid in (float("inf"), float("nan"))
]


@pytest.mark.parametrize(("name", "paid"), CASES)
def test_the_first_absurd_reward_is_named(name: str, paid: float) -> None:
    action = Box(-1, 1, (1,)) if name in ("sac", "td3") else Discrete(2)
    registry = default_registry()
    own = {name: {"learning_starts": 8}} if name in ("dqn", "sac", "td3") else {}
    trainer = registry.load(registry.resolve("trainer", name))(
        scenario_instance=ScenarioInstance(
            name="overpaid", make_environment=lambda _: Overpaid(action, paid)
        ),
        hyper_params={
            "rl": {"num_iterations": 2, "frames_per_batch": 40, "minibatch_size": 8},
            "validate": {"enabled": False},
            **own,
        },
    )
    with pytest.raises(NonFiniteError) as caught:
        trainer.train()
    said = f"agent right got {paid:g} in environment 1 at step {FIRST} of 10"
    assert f"its rewards are the likely cause: {said}" in str(caught.value)
    assert "learning rate" not in str(caught.value)
