"""``AgentsCopy``: one environment of several agents, and what all of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, flatten

from plugrl.core.errors import ContractError, RunError
from plugrl.core.tensordict.environment.copies import Crashes, EpisodeCopy
from plugrl.core.tensordict.environment.layout import Layout


@dataclass(slots=True)
class Outcome:
    """What one step gave one agent of one copy; see ``AgentStep`` for the fields."""

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: Any = None
    real: bool = True


class Seat(NamedTuple):
    """An agent in the environment's own terms.

    Fields:
        agent: its identifier.
        space: what it observes.
        layout: the parts that its observations consist of; None: they have no parts.
        mask: numbers of the ``action_mask`` that its ``infos`` have beside what it observes; None:
            they have none.
    """

    agent: Hashable
    space: Space[Any]
    layout: Layout | None = None
    mask: int | None = None


class AgentsCopy(EpisodeCopy):
    """One environment, and who of its agents takes part.

    Args:
        build: makes the environment.
        seats: the agents by name.
        index: the place among the copies.
        crashes: counts what breaks.
        max_episode_steps: an episode is cut off after so many steps; None: never.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        seats: Mapping[str, Seat],
        index: int,
        crashes: Crashes,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(build, index, crashes)
        self._agents = {name: seat.agent for name, seat in seats.items()}
        self._own = {seat.agent: name for name, seat in seats.items()}
        self._seats = dict(seats)
        self.last = {name: self._nothing(name) for name in seats}
        self._open: set[str] = set()
        self._limit = max_episode_steps
        self._steps = 0

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> dict[str, Outcome]:
        """Take the actions of those who act; begin anew when all have ended.

        Raises:
            RunError: the environment broke too often.
        """

    def _cut_off(self) -> dict[str, Outcome]:
        """End all open episodes where they are, with a step that nobody took part in."""
        outcomes = {name: Outcome(self.last[name], real=False) for name in self._agents}
        for name in self._open:
            outcomes[name].truncated = True
            outcomes[name].final = self.last[name]
        self._begin()
        for name, outcome in outcomes.items():
            outcome.observation = self.last[name]
        return outcomes

    def _is_late(self) -> bool:
        """Count a step; whether the episode was long enough."""
        self._steps += 1
        return self._limit is not None and self._steps >= self._limit

    def _shown(self, name: str, observation: Any) -> Any:
        """An observation that the environment does not change later; parts are one vector.

        Raises:
            ContractError: its parts are not those of the observation space.
        """
        layout = self._seats[name].layout
        if layout is None:
            return own_copy(observation)
        if not isinstance(observation, Mapping):
            raise self._wrong(
                f"an observation of agent {name!r} is a {type(observation).__name__}, not a "
                f"mapping of {', '.join(layout.fields)} as its observation space"
            )
        try:
            return layout.pack(
                {k: self._part(name, k, part)[None] for k, part in observation.items()}
            )[0]
        except (ContractError, TypeError, ValueError, LookupError, AssertionError) as error:
            said = str(error).partition(";")[0]
            raise self._wrong(
                f"an observation of agent {name!r} is none of its observation space: {said}"
            ) from error

    def _part(self, name: str, key: Any, part: Any) -> np.ndarray:
        """A part of an observation as an array: a one among zeros for a choice, several joined."""
        seat = self._seats[name]
        space = seat.space.get(key) if isinstance(seat.space, Dict) else None
        if space is None or is_array(space):
            return np.asarray(part)
        return np.asarray(flatten(space, part))

    def _nothing(self, name: str) -> np.ndarray:
        """An observation for an agent that is not there."""
        _, space, layout, _ = self._seats[name]
        if layout is not None:
            return np.zeros(layout.size, np.float32)
        start = getattr(space, "start", 0) if isinstance(space, Discrete | MultiDiscrete) else 0
        nothing = np.zeros(space.shape or (), space.dtype) + start
        return np.clip(nothing, space.low, space.high) if isinstance(space, Box) else nothing

    def _flag(self, name: str, what: str, flag: Any) -> bool:
        if flag is True or flag is False:
            return flag
        if np.asarray(flag).dtype.kind not in "biuf" or np.size(flag) != 1:
            raise self._wrong(f"{what} of agent {name!r} is {flag!r}, not True or False")
        return bool(flag)

    def _number(self, name: str, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError):
            raise RunError(
                f"{self._crashes.name} gives agent {name!r} the reward {reward!r}, which is no "
                "number; mend the environment"
            ) from None

    def _wrong(self, what: str) -> ContractError:
        return ContractError(f"{self._crashes.name}: {what}; mend the environment")

    def _stranger(self, agent: Hashable) -> RunError:
        known = ", ".join(self._agents)
        return RunError(
            f"{self._crashes.name} has an agent {agent!r} that its possible_agents lack ({known}); "
            "list there all that may take part"
        )


def is_array(space: Space[Any]) -> bool:
    """Whether what is observed is an array that keeps its shape."""
    return isinstance(space, Box | MultiBinary)


def own_copy(value: Any) -> Any:
    """A value that neither an environment nor its caller changes for the other."""
    return value.copy() if isinstance(value, np.ndarray | np.generic) else deepcopy(value)
