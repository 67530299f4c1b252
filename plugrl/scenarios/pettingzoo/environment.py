"""``PettingZooEnvironment``: copies of an environment of several agents, stepped as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.tensordict.environment.copies import Crashes, EpisodesEnvironment
from plugrl.core.tensordict.environment.vector_environment import AgentStep
from plugrl.scenarios.pettingzoo.maker import Maker, agents_of, raw_spaces, spaces_of
from plugrl.scenarios.pettingzoo.parallel_copy import Outcome, ParallelCopy


class PettingZooEnvironment(EpisodesEnvironment):
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
        self._raw = {k: raw_spaces(first, maker.name, a)[0] for k, a in self._agents.items()}
        self._build = partial(maker.build, render=render)
        spaces = spaces_of(first, maker.name, rescale=rescale)
        super().__init__(maker.name, spaces, num_envs, max_restarts=max_restarts, first=first)

    def _new_copy(self, index: int, crashes: Crashes) -> ParallelCopy:
        return ParallelCopy(self._build, self._agents, self._raw, index, crashes)

    def _part(self, actions: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
        return {agent: action[index] for agent, action in actions.items()}

    def _joined(self, agent: str, stepped: Sequence[Mapping[str, Outcome]]) -> AgentStep:
        steps = [each[agent] for each in stepped]
        step = AgentStep(
            observation=self._observations(agent, [each.observation for each in steps]),
            reward=np.array([each.reward for each in steps], np.float32),
            terminated=np.array([each.terminated for each in steps]),
            truncated=np.array([each.truncated for each in steps]),
        )
        real = np.array([each.real for each in steps])
        if not real.all():
            step.real = real
        if any(each.final is not None for each in steps):
            step.final_observation = self._observations(
                agent, [each.observation if each.final is None else each.final for each in steps]
            )
        return step

    def _seen(self, agent: str, begun: Sequence[Mapping[str, Any]]) -> np.ndarray:
        return self._observations(agent, [each[agent] for each in begun])

    def _observations(self, agent: str, observations: Sequence[Any]) -> np.ndarray:
        try:
            return self._spaces[agent].observations(observations)
        except (TypeError, ValueError) as error:
            if isinstance(error, ContractError):
                raise
            raise ContractError(
                f"{self.name} gave agent {agent!r} an observation that is none of its observation "
                f"space ({one_line(error)}); mend one of them"
            ) from error
