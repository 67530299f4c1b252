"""Copies of environments of other libraries: rebuilt when they break, and saved where possible.

``Copy`` is one environment and ``CopiesEnvironment`` steps several as arrays; each library adds
an adapter to both. A copy begins a new episode in the step in which the last one ended.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line, raised_at
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.state import (
    Unsavable,
    capture,
    equal,
    restore,
    resume_fault,
)
from plugrl.core.tensordict.environment.vector_environment import AgentStep, VectorEnvironment

logger = logging.getLogger(__name__)
#: A trial of the state resets copies after so many steps: not all episodes end by themselves.
_RESET_EVERY = 17


class Crashes:
    """How often copies of an environment broke, and how often they may.

    Args:
        name: of the environment, as configured.
        allowed: ``scenario.max_restarts``.
        tell: called with one line about each crash; None: it is logged.
    """

    def __init__(self, name: str, allowed: int, tell: Callable[[str], None] | None = None) -> None:
        self.name = name
        self.count = 0
        self._allowed = allowed
        self._tell = tell or self._log

    def add(self, what: str, error: BaseException | None = None) -> None:
        """Count a crash.

        Raises:
            RunError: there were too many.
        """
        self.count += 1
        if self.count > self._allowed:
            raise RunError(
                f"environment {self.name} broke more often than scenario.max_restarts="
                f"{self._allowed} allows; at last {what}; mend the environment, or allow more"
            ) from error
        self._tell(what)

    def _log(self, what: str) -> None:
        logger.warning(
            "environment %s: %s; it is built anew (%d of at most %d times), and its episode counts "
            "as cut off",
            self.name,
            what,
            self.count,
            self._allowed,
        )


def crash(error: BaseException, doing: str, package: str) -> str:
    """What an environment raised, where, and in which of its methods, in a few words."""
    at = raised_at(error, {package.partition(":")[0].partition(".")[0]})
    return f"raised {one_line(error)} in {doing}{f' at {at}' if at else ''}"


@contextmanager
def restoring(name: str, settings: str) -> Iterator[None]:
    """Say what to set where an environment cannot take back its state.

    Args:
        name: of the environment.
        settings: what says which environment it is.

    Raises:
        RunError: for what is raised in the block.
    """
    try:
        yield
    except (Unsavable, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"environment {name} cannot take back its saved state ({error}); set {settings} to "
            "what they were"
        ) from error


class Copy(ABC):
    """One environment, which is built anew when it breaks.

    Args:
        build: makes the environment.
        index: the place among the copies.
        crashes: counts what breaks.

    Attributes:
        environment: of another library; None: not built yet.
        restarts: how often it was built anew.
    """

    #: Attributes that are part of the state, besides the environment.
    KEPT: ClassVar[tuple[str, ...]] = ()
    #: What says which environment it is.
    SETTINGS: ClassVar[str] = "scenario.environment and env_kwargs"

    def __init__(self, build: Callable[[], Any], index: int, crashes: Crashes) -> None:
        self.environment: Any = None
        self.restarts = 0
        self._build = build
        self._index = index
        self._crashes = crashes
        self._seed: int | None = None

    @abstractmethod
    def _reset(self) -> Any:
        """Begin the next episode of an environment that is built; give what is first seen."""

    def _begin(self) -> Any:
        """Begin the next episode; an environment that breaks is built anew."""
        while True:
            try:
                if self.environment is None:
                    self.environment = self._build()
                return self._reset()
            except PlugrlError:
                raise
            except (Exception, SystemExit) as error:
                self._broke("reset()", error)

    def _broke(self, doing: str, error: BaseException) -> None:
        """Count a crash and let go of the environment.

        Raises:
            RunError: there were too many.
        """
        self.restarts += 1
        self.close()
        what = crash(error, doing, self._package)
        self._crashes.add(f"copy {self._index} {what}", error)

    @property
    def _package(self) -> str:
        """Where the code of the environment is; files there are named as the place of a crash."""
        return self._crashes.name

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs.

        Raises:
            Unsavable: something cannot be saved.
        """
        state = {"environment": capture(self.environment)}
        if self.KEPT:
            state["kept"] = capture({name: getattr(self, name) for name in self.KEPT})
        return {**state, "seed": self._seed, "restarts": self.restarts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            RunError: the environment is another one.
        """
        # What is made by the first reset must be there to be filled.
        self._seed = 0
        self._begin()
        kept = {name: getattr(self, name) for name in self.KEPT}
        with restoring(self._crashes.name, self.SETTINGS):
            restore(self.environment, state["environment"])
            if kept:
                restore(kept, state["kept"])
        for name, value in kept.items():
            setattr(self, name, value)
        self._seed, self.restarts = state["seed"], state["restarts"]

    def close(self) -> None:
        """Release what the environment holds."""
        environment, self.environment = self.environment, None
        if environment is not None:
            with suppress(Exception):
                environment.close()


class EpisodeCopy(Copy):
    """A copy whose episodes have seeds of their own, and that gives something to each agent.

    Attributes:
        episode: the number of the present one.
        last: what each agent saw last.
    """

    def __init__(self, build: Callable[[], Any], index: int, crashes: Crashes) -> None:
        super().__init__(build, index, crashes)
        self.episode = -1
        self.last: dict[str, Any] = {}

    @property
    def episode_seed(self) -> int:
        """The seed of the present episode."""
        entropy = (self._seed or 0, self._index, self.episode)
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF

    def begin(self, seed: int) -> dict[str, Any]:
        """Begin the first episode of ``seed``; give what each agent sees."""
        self._seed, self.episode = seed, -1
        self._begin()
        return dict(self.last)

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take actions in terms of the environment; give what the step gave each agent.

        Raises:
            RunError: the environment broke too often.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            RunError: the environment is another one.
        """
        if "actions" in state:
            self._replay(state)
        else:
            super().load_state_dict(state)

    def _replay(self, state: Mapping[str, Any]) -> None:
        """Play the present episode of a state of version 0.1, which held seed and actions."""
        self._seed, self.episode = int(state["seed"]), int(state["episode"]) - 1
        self._begin()
        queues = {agent: iter(actions) for agent, actions in state["actions"].items()}
        for _ in range(state["steps"]):
            self.step({agent: next(queues[agent]) for agent in self._present()})
        if not equal([*self.last.values()], [state["last"][agent] for agent in self.last]):
            with restoring(self._crashes.name, self.SETTINGS):
                raise Unsavable("its episode is another one when it is played again")

    def _present(self) -> Sequence[str]:
        """Who acts in the next step."""
        return list(self.last)


class ResumableEnvironment(VectorEnvironment):
    """A vector environment of another library whose state is saved where a trial shows it whole.

    Args:
        name: of the environment, as configured.
        num_envs: how many copies.
        spaces: of each agent.
        max_restarts: how often copies may be built anew.
    """

    def __init__(
        self, name: str, num_envs: int, spaces: Mapping[str, Spaces], max_restarts: int
    ) -> None:
        self.name = name
        self.num_envs = num_envs
        self.spaces = {agent: each.agent for agent, each in spaces.items()}
        self._spaces = spaces
        self._crashes = Crashes(name, max_restarts)

    @property
    def crashes(self) -> int:  # type: ignore[override]
        """How many copies broke and were built anew."""
        return self._crashes.count

    @cached_property
    def unsaved(self) -> str | None:
        """Why the state of the copies cannot be saved; None: it can. Found by trying, once."""
        reason = self._trial()
        if reason is not None:
            logger.info("environment %s: its state cannot be saved: %s", self.name, reason)
        return reason

    @abstractmethod
    def _trial(self) -> str | None:
        """Why the state of copies like these cannot be saved."""

    def state_dict(self) -> dict[str, Any] | None:
        """The copies and what was seen of them; None where :attr:`unsaved` says why."""
        if self.unsaved:
            return None
        try:
            return {"crashes": self.crashes, **self._held()}
        except Unsavable:
            return None

    @abstractmethod
    def _held(self) -> dict[str, Any]:
        """The state of the copies.

        Raises:
            Unsavable: something cannot be saved.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            RunError: it holds other copies, or another number of them.
        """
        self._check_state(state)
        self._put_back(state)
        self._crashes.count = int(state["crashes"])

    @abstractmethod
    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of other copies; see :meth:`load_state_dict`."""

    @abstractmethod
    def _put_back(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`_held` gave."""

    def _check_count(self, saved: int, copies: int) -> None:
        """Refuse a state of ``saved`` copies where there are ``copies``."""
        if saved != copies:
            raise RunError(
                f"the checkpoint holds {saved} copies of environment {self.name} and the "
                f"configuration asks for {copies}; set scenario.num_envs={saved}"
            )


class CopiesEnvironment(ResumableEnvironment):
    """Copies that are stepped one after the other, and what they gave as arrays.

    Args:
        name: of the environment, as configured.
        spaces: of each agent.
        copies: how many.
        rows: environments in each, which may be a batch.
        max_restarts: how often copies may be built anew.
    """

    _copies: Sequence[Any]

    def __init__(
        self,
        name: str,
        spaces: Mapping[str, Spaces],
        copies: int,
        *,
        rows: int = 1,
        max_restarts: int = 0,
    ) -> None:
        super().__init__(name, copies * rows, spaces, max_restarts)
        self._rows = rows
        self._copies = [self._new_copy(index, self._crashes) for index in range(copies)]

    @abstractmethod
    def _new_copy(self, index: int, crashes: Crashes) -> Any:
        """A copy for a place among the others."""

    @abstractmethod
    def _begin_copies(self, seed: int | None) -> Sequence[Any]:
        """Begin the episodes of all copies; give what each of them shows."""

    @abstractmethod
    def _step_copies(self, actions: Mapping[str, np.ndarray]) -> Sequence[Any]:
        """Take actions in terms of the environment; give what came of them in each copy."""

    @abstractmethod
    def _seen(self, agent: str, begun: Sequence[Any]) -> np.ndarray:
        """What an agent sees first in each copy, as networks see it, ``[N, *observation]``."""

    @abstractmethod
    def _joined(self, agent: str, stepped: Sequence[Any]) -> AgentStep:
        """What a step of all copies gave an agent."""

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes anew; without a seed they differ each time."""
        begun = self._begin_copies(seed)
        observations = {agent: self._seen(agent, begun) for agent in self.spaces}
        for agent, observation in observations.items():
            self._spaces[agent].check(observation, None, agent)
        return observations

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action of each agent in every copy; see the base class."""
        stepped = self._step_copies(self._taken(actions, self.num_envs))
        return self._checked({agent: self._joined(agent, stepped) for agent in self.spaces})

    def _taken(self, actions: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Actions of networks in terms of the environment."""
        return {agent: each.actions(actions[agent], rows) for agent, each in self._spaces.items()}

    def _checked(self, steps: dict[str, AgentStep]) -> dict[str, AgentStep]:
        """Steps whose numbers are finite."""
        for agent, step in steps.items():
            self._spaces[agent].check(step.observation, step.reward, agent)
            if step.final_observation is not None:
                self._spaces[agent].check(step.final_observation, None, agent)
        return steps

    def _held(self) -> dict[str, Any]:
        return {"copies": [copy.state_dict() for copy in self._copies]}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        self._check_count(len(state["copies"]), len(self._copies))

    def _put_back(self, state: Mapping[str, Any]) -> None:
        for copy, held in zip(self._copies, state["copies"], strict=True):
            copy.load_state_dict(held)

    def render(self) -> np.ndarray | None:
        """A frame of the first copy; None: it has none."""
        environment: Any = getattr(self._copies[0], "environment", None)
        if getattr(environment, "render_mode", None) != "rgb_array":
            return None
        frame = environment.render()
        return None if frame is None else np.asarray(frame)

    def close(self) -> None:
        """Release what the copies hold."""
        for copy in self._copies:
            copy.close()


class EpisodesEnvironment(CopiesEnvironment):
    """Copies whose episodes have seeds of their own and give something to each agent.

    Args:
        first: an environment for the first copy, which is built already.
    """

    _copies: Sequence[EpisodeCopy]

    def __init__(
        self,
        name: str,
        spaces: Mapping[str, Spaces],
        copies: int,
        *,
        rows: int = 1,
        max_restarts: int = 0,
        first: Any = None,
    ) -> None:
        super().__init__(name, spaces, copies, rows=rows, max_restarts=max_restarts)
        self._copies[0].environment = first

    @abstractmethod
    def _part(self, actions: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
        """The actions of one copy."""

    def _begin_copies(self, seed: int | None) -> list[dict[str, Any]]:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        return [copy.begin(seed) for copy in self._copies]

    def _step_copies(self, actions: Mapping[str, np.ndarray]) -> list[Mapping[str, Any]]:
        return [copy.step(self._part(actions, i)) for i, copy in enumerate(self._copies)]

    def _tried(self, agent: str, space: Space[Any], copy: EpisodeCopy) -> Any:
        """An action that may be taken in a copy, drawn from its space."""
        return space.sample()

    def _trial(self) -> str | None:
        drawn = deepcopy({agent: spaces.action for agent, spaces in self.spaces.items()})

        def play(copy: EpisodeCopy, seed: int | None, steps: range) -> list[Any]:
            seen: list[Any] = [] if seed is None else [*copy.begin(seed).values()]
            for number in steps:
                actions = {}
                for agent, space in drawn.items():
                    space.seed(number)
                    actions[agent] = np.stack(
                        [np.asarray(self._tried(agent, space, copy)) for _ in range(self._rows)]
                    )
                stepped = copy.step(self._part(self._taken(actions, self._rows), 0))
                for step in stepped.values():
                    seen += [step.observation, step.reward, step.terminated, step.truncated]
                if number % _RESET_EVERY == _RESET_EVERY - 1:
                    seen += copy.begin(number).values()
            return seen

        return resume_fault(
            lambda: self._new_copy(0, Crashes(self.name, 0)),
            play,
            capture=type(self._copies[0]).state_dict,
            restore=type(self._copies[0]).load_state_dict,
        )
