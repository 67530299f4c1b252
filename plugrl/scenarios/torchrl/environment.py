"""``TorchrlEnvironment``: copies of a TorchRL environment, stepped as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from tensordict import TensorDictBase
from torchrl.envs import SerialEnv

from plugrl.core.tensordict.environment.copies import Crashes, EpisodesEnvironment
from plugrl.core.tensordict.environment.vector_environment import AgentStep
from plugrl.scenarios.torchrl.layout import Layout
from plugrl.scenarios.torchrl.maker import Maker
from plugrl.scenarios.torchrl.tensordict_copy import TensorDictCopy


class TorchrlEnvironment(EpisodesEnvironment):
    """Copies of an environment, each of which may be a batch: N is the number of all their rows.

    Args:
        maker: builds the copies.
        copies: how many; None: 1 of a batch, else 4.
        observation: name of the entry that networks see; None: the usual one.
        rescale: networks act in [-1, 1] instead of within the bounds.
        max_restarts: copies that may break and be built anew.
        render: whether there are frames.
        collected: one batch of all copies, for TorchRL's own collector.

    Raises:
        ConfigError: it cannot be built, or a spec is of a kind that networks cannot take.
    """

    def __init__(
        self,
        maker: Maker,
        copies: int | None = None,
        *,
        observation: str | None = None,
        rescale: bool = False,
        max_restarts: int = 0,
        render: bool = False,
        collected: bool = False,
    ) -> None:
        first = maker.build(render=render)
        batch = tuple(first.batch_size)
        count = copies or (1 if batch else 4)
        self._build: Callable[[], Any] = partial(maker.build, render=render)
        groups = getattr(first, "group_map", None) or {}
        if collected:
            self._build = partial(SerialEnv, count, [self._build] * count)
            first.close()
            first, count = self._build(), 1
        self._layout = Layout(
            first, maker.name, observation=observation, rescale=rescale, groups=groups
        )
        #: What TorchRL's own collector steps; None: it is stepped here.
        self.torchrl_environment = first if collected else None
        spaces = {place.name: place.spaces for place in self._layout.places}
        super().__init__(
            maker.name,
            spaces,
            count,
            rows=self._layout.rows,
            max_restarts=max_restarts,
            first=first,
        )

    def _new_copy(self, index: int, crashes: Crashes) -> TensorDictCopy:
        return TensorDictCopy(self._build, self._layout, index, crashes)

    def _part(self, actions: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
        rows = slice(index * self._rows, (index + 1) * self._rows)
        return {agent: action[rows] for agent, action in actions.items()}

    def _seen(self, agent: str, begun: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
        return np.concatenate([each[agent] for each in begun])

    def _joined(self, agent: str, stepped: Sequence[Mapping[str, AgentStep]]) -> AgentStep:
        return _joined([each[agent] for each in stepped])

    def _trial(self) -> str | None:
        if self.torchrl_environment is not None:
            return "TorchRL's collector holds what it saw last"
        return super()._trial()

    def observe(self, tensordict: TensorDictBase) -> dict[str, np.ndarray]:
        """What each agent sees in a TensorDict of all copies; see ``TorchrlSource``."""
        observations = self._whole.observe(tensordict)
        for agent, observation in observations.items():
            self._spaces[agent].check(observation, None, agent)
        return observations

    def write(self, tensordict: TensorDictBase, actions: Mapping[str, np.ndarray]) -> None:
        """Put the agents' actions into a TensorDict of all copies."""
        self._layout.write(tensordict, self._taken(actions, self.num_envs))

    def told(self, tensordict: TensorDictBase) -> dict[str, AgentStep]:
        """What a step of all copies gave each agent."""
        return self._checked(self._whole.told(tensordict))

    def anew(self) -> None:
        """Let all agents take part, as at the beginning."""
        self._whole.anew()

    @property
    def _whole(self) -> TensorDictCopy:
        return cast(TensorDictCopy, self._copies[0])


def _joined(steps: Sequence[AgentStep]) -> AgentStep:
    if len(steps) == 1:
        return steps[0]
    final = real = None
    if any(step.final_observation is not None for step in steps):
        pairs = [(step.final_observation, step.observation) for step in steps]
        final = np.concatenate([seen if last is None else last for last, seen in pairs])
    if any(step.real is not None for step in steps):
        every = [np.ones(len(step.reward), bool) for step in steps]
        real = np.concatenate(
            [whole if s.real is None else s.real for s, whole in zip(steps, every, strict=True)]
        )
    return AgentStep(
        observation=np.concatenate([step.observation for step in steps]),
        reward=np.concatenate([step.reward for step in steps]),
        terminated=np.concatenate([step.terminated for step in steps]),
        truncated=np.concatenate([step.truncated for step in steps]),
        final_observation=final,
        real=real,
    )
