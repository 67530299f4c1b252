"""``CopiedEnvironment``: copies whose episodes can be played again from seed and actions."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np

from plugrl.core.errors import ConfigError, NonFiniteError, PlugrlError, RunError
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment
from plugrl.scenarios.crashes import Crashes

logger = logging.getLogger(__name__)
#: Steps after which a copy must be where another is.
_PROOF = 20
#: Actions of longer episodes are not kept, so that their state cannot be saved.
LONGEST = 100_000

Begun = TypeVar("Begun")


class Copied(ABC):
    """One copy: it begins anew by itself, and its episodes have seeds.

    Every episode has a seed of its own, so that an episode can be played again from its seed and
    actions: that is how its state is saved.

    Args:
        build: makes the environment.
        index: the place among the copies.
        crashes: counts what breaks.

    Attributes:
        episode: the number of the present one.
        last: what each agent saw last.
        environment: of another library; None: not built yet.
    """

    def __init__(self, build: Callable[[], Any], index: int, crashes: Crashes) -> None:
        self._build = build
        self._index = index
        self._crashes = crashes
        self.environment: Any = None
        self.episode = -1
        self.last: dict[str, Any] = {}
        self._seed = 0
        #: The actions of the present episode.
        self._taken: list[dict[str, Any]] = []
        #: Whether the present episode does not go on as the one that was saved.
        self._lost = False

    @abstractmethod
    def begin(self, seed: int) -> dict[str, Any]:
        """Begin the first episode of a seed; give what each agent sees."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take actions in terms of the environment; give what the step gave each agent.

        Raises:
            RunError: the environment broke too often.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any] | None:
        """Seed and actions of the present episode; None: that would not be all."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Play an episode again; say whether it went as before."""

    @property
    def episode_seed(self) -> int:
        """The seed of the present episode."""
        entropy = (self._seed, self._index, self.episode)
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF

    def _next_episode(self, begin: Callable[[Any], Begun]) -> Begun:
        """What ``begin`` makes of the next episode; an environment that breaks is built anew."""
        while True:
            self.episode += 1
            self._taken, self._lost = [], False
            try:
                if self.environment is None:
                    self.environment = self._build()
                return begin(self.environment)
            except PlugrlError:
                raise
            except (Exception, SystemExit) as error:
                self._drop()
                self._crashes.add("reset", error)

    def _episode_state(self) -> dict[str, Any]:
        """What says which episode this is, and how far it went."""
        return {
            "seed": self._seed,
            "index": self._index,
            "episode": self.episode,
            "steps": len(self._taken),
            "lost": self._lost,
        }

    def _go_to(self, state: Mapping[str, Any]) -> None:
        """Let the next episode be that of :meth:`_episode_state`."""
        self._seed, self._index = int(state["seed"]), int(state["index"])
        self.episode = int(state["episode"]) - 1

    def _drop(self) -> None:
        broken, self.environment = self.environment, None
        with suppress(Exception):
            broken.close()

    def close(self) -> None:
        """Release what the environment holds."""
        if self.environment is not None:
            self._drop()


class CopiedEnvironment(VectorEnvironment):
    """N copies of an environment of another library in this process.

    Its state is, for each copy, the seed of the episode and the actions since it began: loading it
    plays them again. Environments that are not the same again have no state.

    Args:
        name: of the environment, as configured.
        spaces: of each agent.
        copies: how many.
        rows: environments in each, which may be a batch.
        max_restarts: copies that may break and be built anew.
    """

    def __init__(
        self, name: str, spaces: Mapping[str, Spaces], copies: int, rows: int, max_restarts: int
    ) -> None:
        self.name = name
        self.num_envs = copies * rows
        self.spaces = {agent: each.agent for agent, each in spaces.items()}
        self._spaces = spaces
        self._rows = rows
        self._counter = Crashes(name, max_restarts)
        self._copies = [self._new_copy(index, self._counter) for index in range(copies)]
        self._repeats: bool | None = None

    @abstractmethod
    def _new_copy(self, index: int, crashes: Crashes) -> Copied:
        """A copy for a place among the others."""

    @abstractmethod
    def _part(self, actions: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
        """The actions of one copy."""

    @property
    def crashes(self) -> int:  # type: ignore[override]
        """How many copies broke and were built again."""
        return self._counter.count

    def _begun(self, seed: int | None) -> list[dict[str, Any]]:
        """Begin all episodes anew; without a seed they differ each time."""
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        return [copy.begin(seed) for copy in self._copies]

    def _stepped(self, actions: Mapping[str, np.ndarray]) -> list[Mapping[str, Any]]:
        """What a step gave each copy."""
        taken = {
            agent: spaces.actions(actions[agent], self.num_envs)
            for agent, spaces in self._spaces.items()
        }
        return [copy.step(self._part(taken, i)) for i, copy in enumerate(self._copies)]

    def _check(self, agent: str, what: str, values: np.ndarray) -> None:
        """Refuse numbers that are not finite.

        Raises:
            NonFiniteError: the text names environment, agent and copy.
        """
        if values.dtype.kind != "f" or np.isfinite(values).all():
            return
        row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
        episode = self._copies[row // self._rows].episode
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
        some, other = (self._new_copy(0, Crashes(self.name, 0)) for _ in range(2))
        drawn = deepcopy({agent: spaces.agent.action for agent, spaces in self._spaces.items()})
        try:
            same = _equal(some.begin(1), other.begin(1))
            for number in range(_PROOF):
                actions = {}
                for agent, space in drawn.items():
                    space.seed(number)
                    batch = np.stack([np.asarray(space.sample()) for _ in range(self._rows)])
                    actions[agent] = self._spaces[agent].actions(batch, self._rows)
                some.step(self._part(actions, 0))
                other.step(self._part(actions, 0))
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
        if len(state["copies"]) != len(self._copies):
            raise RunError(
                f"the saved state has {len(state['copies'])} copies of {self.name} and "
                f"scenario.num_envs is {len(self._copies)}; set it back to go on"
            )
        for i, (copy, held) in enumerate(zip(self._copies, state["copies"], strict=True)):
            if not copy.load_state_dict(held):
                logger.warning(
                    "%s: copy %d did not go as before; its episode is cut off", self.name, i
                )
        self._counter.count = int(state["crashes"])

    def render(self) -> np.ndarray | None:
        """A frame of the first copy; None: it has none."""
        environment = self._copies[0].environment
        if getattr(environment, "render_mode", None) != "rgb_array":
            return None
        frame = environment.render()
        return None if frame is None else np.asarray(frame)

    def close(self) -> None:
        """Release what the copies hold."""
        for copy in self._copies:
            copy.close()


def _equal(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return all(np.array_equal(some[agent], others[agent]) for agent in some)
