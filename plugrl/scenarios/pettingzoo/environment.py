"""``PettingZooEnvironment``: copies of an environment of several agents, stepped as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete, Space

from plugrl.core.errors import ContractError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.tensordict.environment.contract import offered
from plugrl.core.tensordict.environment.copies import Crashes, EpisodeCopy, EpisodesEnvironment
from plugrl.core.tensordict.environment.layout import ACTION_MASK
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, AgentStep
from plugrl.scenarios.pettingzoo.agents_copy import AgentsCopy, Outcome
from plugrl.scenarios.pettingzoo.maker import Maker, seats_of, spaces_of, takes_turns
from plugrl.scenarios.pettingzoo.parallel_copy import ParallelCopy
from plugrl.scenarios.pettingzoo.results import results
from plugrl.scenarios.pettingzoo.turn_copy import TurnCopy


class PettingZooEnvironment(EpisodesEnvironment):
    """N copies; each begins anew in the step in which its last agent ended.

    Args:
        maker: builds the copies.
        num_envs: N.
        rescale: networks act in [-1, 1] instead of within the bounds of a Box.
        max_restarts: copies that may break and be built anew.
        render: whether there are frames.
        max_episode_steps: an episode is cut off after so many steps; None: never.

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
        max_episode_steps: int | None = None,
    ) -> None:
        first = maker.build(render=render)
        self._takes_turns = takes_turns(first)
        self._seats = seats_of(first, maker.name)
        self._build = partial(maker.build, render=render)
        self._limit = max_episode_steps
        spaces = spaces_of(first, maker.name, self._seats, rescale=rescale)
        if self._takes_turns:
            # It was reset for a look at its masks, which may show in what it plays.
            with suppress(Exception):
                first.close()
            first = None
        self._is_masked = any(ACTION_MASK in (seat.layout or ()) for seat in self._seats.values())
        super().__init__(maker.name, spaces, num_envs, max_restarts=max_restarts, first=first)

    def _new_copy(self, index: int, crashes: Crashes) -> AgentsCopy:
        kind = TurnCopy if self._takes_turns else ParallelCopy
        return kind(self._build, self._seats, index, crashes, self._limit)

    @property
    def takes_turns(self) -> bool:
        """Whether one agent moves at a time; masks may let some wait besides."""
        return self._takes_turns

    def acting(self) -> Mapping[str, np.ndarray] | None:
        """Whose turn it is in each copy; None: agents act at once.

        Of agents that act at once, one to which its mask leaves nothing waits.
        """
        if self._takes_turns:
            turns = [copy.turn for copy in self._copies]
            return {agent: np.array([turn == agent for turn in turns]) for agent in self.spaces}
        if not self._is_masked:
            return None
        every = np.ones(self.num_envs, bool)
        acting = {}
        for agent, spaces in self.spaces.items():
            seen = np.stack([copy.last[agent] for copy in self._copies])
            some = offered(spaces, seen)
            acting[agent] = every if some is None else some
        return acting

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes anew; without a seed they differ each time."""
        observations = super().reset(seed)
        self._check_choices(observations)
        return observations

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action of each agent whose turn it is in every copy; see the base class."""
        steps = super().step(actions)
        self._check_choices({agent: step.observation for agent, step in steps.items()})
        return steps

    def _check_choices(self, observations: Mapping[str, np.ndarray]) -> None:
        """Refuse a turn in which everything is masked: no move could be drawn."""
        acting = self.acting()
        if acting is None:
            return
        if not self._takes_turns:
            idle = ~np.logical_or.reduce(list(acting.values()))
            if idle.any():
                raise ContractError(
                    f"{self.name}: the {ACTION_MASK} of every agent in copy "
                    f"{int(np.flatnonzero(idle)[0])} is all 0; allow one a move, or end the episode"
                )
            return
        for agent, acts in acting.items():
            some = offered(self.spaces[agent], observations[agent])
            if some is not None and (acts & ~some).any():
                copy = int(np.flatnonzero(acts & ~some)[0])
                raise ContractError(
                    f"{self.name}: the {ACTION_MASK} of agent {agent!r} in copy {copy} is all 0 in "
                    "its turn; allow it a move, or end the episode"
                )

    def take_metrics(self, episodes: int | None = None) -> dict[str, float]:
        """Where agents take turns, the shares of episodes that each won, drew and lost."""
        if not self._takes_turns:
            return {}
        games: list[Mapping[str, float]] = []
        for index, copy in enumerate(self._copies):
            share = None
            if episodes is not None:
                share = episodes // self.num_envs + (index < episodes % self.num_envs)
            games += copy.games[:share]
            copy.games = []
        return results(games)

    def _tried(self, agent: str, space: Space[Any], copy: EpisodeCopy) -> Any:
        allowed = _allowed(self.spaces[agent], copy.last[agent])
        return space.sample() if allowed is None else space.sample(allowed)

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


def _allowed(spaces: AgentSpaces, observation: np.ndarray) -> Any:
    """The mask of an observation as ``Space.sample`` takes it; None: there is none."""
    layout = spaces.layout
    if layout is None or ACTION_MASK not in layout:
        return None
    mask = (observation[layout.slices[ACTION_MASK]] > 0.5).astype(np.int8)
    if isinstance(spaces.action, MultiDiscrete):
        return tuple(np.split(mask, np.cumsum(spaces.action.nvec)[:-1]))
    return mask
