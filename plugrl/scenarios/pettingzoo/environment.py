"""``PettingZooEnvironment``: copies of an environment of several agents, stepped as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.plugins.blame import one_line
from plugrl.core.tensordict.environment.vector_environment import AgentStep
from plugrl.scenarios.copied import CopiedEnvironment
from plugrl.scenarios.crashes import Crashes
from plugrl.scenarios.pettingzoo.maker import Maker, agents_of, raw_spaces, spaces_of
from plugrl.scenarios.pettingzoo.parallel_copy import Copy, Outcome


class PettingZooEnvironment(CopiedEnvironment):
    """N copies; each begins anew in the step in which its last agent ended.

    Args:
        maker: builds the copies.
        num_envs: N.
        rescale: networks act in [-1, 1] instead of within the bounds of a Box.
        max_restarts: copies that may break and be built anew.
        render: whether there are frames.

    Raises:
        ConfigError: it cannot be built, or a space is of a kind that networks cannot take.
    """

    def __init__(
        self,
        maker: Maker,
        num_envs: int,
        *,
        rescale: bool = False,
        max_restarts: int = 0,
        render: bool = False,
    ) -> None:
        first = maker.build(render=render)
        self._agents = agents_of(first, maker.name)
        self._seen = {k: raw_spaces(first, maker.name, a)[0] for k, a in self._agents.items()}
        self._build = partial(maker.build, render=render)
        spaces = spaces_of(first, maker.name, rescale=rescale)
        super().__init__(maker.name, spaces, num_envs, 1, max_restarts)
        self._copies[0].environment = first

    def _new_copy(self, index: int, crashes: Crashes) -> Copy:
        return Copy(self._build, self._agents, self._seen, index, crashes)

    def _part(self, actions: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
        return {agent: action[index] for agent, action in actions.items()}

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes anew; without a seed they differ each time."""
        begun = self._begun(seed)
        observations = {
            agent: self._observations(agent, [each[agent] for each in begun])
            for agent in self.spaces
        }
        for agent, observation in observations.items():
            self._check(agent, "observation", observation)
        return observations

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action of each agent in every copy; see the base class."""
        stepped = self._stepped(actions)
        return {
            agent: self._joined(agent, [each[agent] for each in stepped]) for agent in self.spaces
        }

    def _joined(self, agent: str, outcomes: list[Outcome]) -> AgentStep:
        step = AgentStep(
            observation=self._observations(agent, [each.observation for each in outcomes]),
            reward=np.array([each.reward for each in outcomes], np.float32),
            terminated=np.array([each.terminated for each in outcomes]),
            truncated=np.array([each.truncated for each in outcomes]),
        )
        self._check(agent, "observation", step.observation)
        self._check(agent, "reward", step.reward)
        real = np.array([each.real for each in outcomes])
        if not real.all():
            step.real = real
        if any(each.final is not None for each in outcomes):
            step.final_observation = self._observations(
                agent, [each.observation if each.final is None else each.final for each in outcomes]
            )
            self._check(agent, "observation", step.final_observation)
        return step

    def _observations(self, agent: str, values: list[Any]) -> np.ndarray:
        try:
            return self._spaces[agent].observations(values)
        except (TypeError, ValueError) as error:
            if isinstance(error, ContractError):
                raise
            raise ContractError(
                f"{self.name} gave agent {agent!r} an observation that is none of its observation "
                f"space ({one_line(error)}); mend one of them"
            ) from error
