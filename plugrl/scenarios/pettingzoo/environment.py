"""``PettingZooEnvironment``: copies of an environment of several agents, stepped as arrays."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np

from plugrl.core.blame import one_line
from plugrl.core.errors import ConfigError, ContractError, NonFiniteError, RunError
from plugrl.core.tensordict.environment import AgentStep, VectorEnvironment
from plugrl.scenarios.crashes import Crashes
from plugrl.scenarios.gymnasium.spaces import all_finite
from plugrl.scenarios.pettingzoo.copies import Copy, Outcome
from plugrl.scenarios.pettingzoo.making import Maker, agents_of, raw_spaces, spaces_of

logger = logging.getLogger(__name__)
#: Steps after which a copy must be where another is.
_PROOF = 20


class PettingZooEnvironment(VectorEnvironment):
    """N copies, one process. A copy begins anew in the step in which its last agent ended.

    Its state is, for each copy, the seed of the episode and the actions since it began: loading it
    plays them again. Environments that are not the same again have no state.

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
        self.name = maker.name
        self.num_envs = num_envs
        first = maker.build(render=render)
        self._spaces = spaces_of(first, maker.name, rescale=rescale)
        self.spaces = {agent: spaces.agent for agent, spaces in self._spaces.items()}
        agents = agents_of(first, maker.name)
        seen = {k: raw_spaces(first, maker.name, agent)[0] for k, agent in agents.items()}
        self._counter = Crashes(maker.name, max_restarts)
        build = partial(maker.build, render=render)

        def copy(index: int, crashes: Crashes) -> Copy:
            return Copy(build, agents, seen, index, crashes)

        self._copy = copy
        self._copies = [copy(index, self._counter) for index in range(num_envs)]
        self._copies[0].environment = first
        self._repeats: bool | None = None

    @property
    def crashes(self) -> int:  # type: ignore[override]
        """How many copies broke and were built again."""
        return self._counter.count

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes anew; without a seed they differ each time."""
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        begun = [copy.begin(seed) for copy in self._copies]
        observations = {
            agent: self._observations(agent, [each[agent] for each in begun])
            for agent in self.spaces
        }
        for agent, observation in observations.items():
            self._check(agent, "observation", observation)
        return observations

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action of each agent in every copy; see the base class."""
        taken = {
            agent: spaces.actions(actions[agent], self.num_envs)
            for agent, spaces in self._spaces.items()
        }
        stepped = [
            copy.step({agent: action[i] for agent, action in taken.items()})
            for i, copy in enumerate(self._copies)
        ]
        return {agent: self._joined(agent, [each[agent] for each in stepped]) for agent in taken}

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

    def _check(self, agent: str, what: str, values: np.ndarray) -> None:
        if values.dtype.kind != "f" or all_finite(values):
            return
        row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
        episode = self._copies[row].episode
        raise NonFiniteError(
            f"{self.name} gave agent {agent!r} a NaN or infinite {what} in copy {row}, episode "
            f"{episode}; mend the environment, or wrap it so that its values stay finite"
        )

    def state_dict(self) -> dict[str, Any] | None:
        """The present episodes; None: the environment does not give the same again."""
        if self._repeats is None:
            self._repeats = self._are_same_again()
        states = [copy.state_dict() for copy in self._copies] if self._repeats else [None]
        if any(state is None for state in states):
            return None
        return {"crashes": self._counter.count, "copies": states}

    def _are_same_again(self) -> bool:
        """Whether copies from one seed stay equal, and a replayed one is where another is."""
        some, other = (self._copy(0, Crashes(self.name, 0)) for _ in range(2))
        drawn = deepcopy({agent: spaces.agent.action for agent, spaces in self._spaces.items()})
        try:
            same = _equal(some.begin(1), other.begin(1))
            for number in range(_PROOF):
                actions = {}
                for agent, space in drawn.items():
                    space.seed(number)
                    batch = np.asarray(space.sample())[None]
                    actions[agent] = self._spaces[agent].actions(batch, 1)[0]
                some.step(actions)
                other.step(actions)
                same = same and _equal(some.last, other.last)
            state = some.state_dict()
            return same and state is not None and other.load_state_dict(state)
        except (ConfigError, RunError):
            return False
        finally:
            some.close()
            other.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Play the episodes of :meth:`state_dict` again; one that differs now is cut off.

        Raises:
            RunError: there were other numbers of copies, or one broke too often.
        """
        if len(state["copies"]) != self.num_envs:
            raise RunError(
                f"the saved state has {len(state['copies'])} copies of {self.name} and "
                f"scenario.num_envs is {self.num_envs}; set it back to go on"
            )
        for i, (copy, held) in enumerate(zip(self._copies, state["copies"], strict=True)):
            if not copy.load_state_dict(held):
                logger.warning(
                    "%s: copy %d did not go as before; its episode is cut off", self.name, i
                )
        self._counter.count = int(state["crashes"])

    def render(self) -> np.ndarray | None:
        """A frame of the first copy; None: it has none."""
        if getattr(self._copies[0].environment, "render_mode", None) != "rgb_array":
            return None
        frame = self._copies[0].environment.render()
        return None if frame is None else np.asarray(frame)

    def close(self) -> None:
        """Release what the copies hold."""
        for copy in self._copies:
            copy.close()


def _equal(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return all(np.array_equal(some[agent], others[agent]) for agent in some)
