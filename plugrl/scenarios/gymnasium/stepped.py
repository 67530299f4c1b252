"""Copies that are stepped one by one, in this process or each in one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ContractError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.tensordict.environment.copies import (
    CopiesEnvironment,
    Crashes,
    ResumableEnvironment,
)
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import AGENT, AgentStep
from plugrl.scenarios.gymnasium import simulators
from plugrl.scenarios.gymnasium.local_copy import LocalCopy, Outcome
from plugrl.scenarios.gymnasium.recipe import Recipe
from plugrl.scenarios.gymnasium.remote_copy import RemoteCopy
from plugrl.scenarios.gymnasium.seeding import copy_seeds

if TYPE_CHECKING:
    from plugrl.core.text.rollout.processes.executor import Executor


def check_kind(environment: ResumableEnvironment, kind: str, state: Mapping[str, Any]) -> None:
    """Refuse the state of copies that were stepped in another way.

    Args:
        environment: which gets the state.
        kind: the value of ``scenario.vectorization`` that stands for how it steps copies.
        state: which was saved.

    Raises:
        RunError: the text says what to set.
    """
    saved = _kind_of(state)
    if saved != kind:
        raise RunError(
            f"the checkpoint holds copies of environment {environment.name} that were stepped by "
            f"{saved}, and now it is {kind}; set scenario.vectorization={saved}"
        )


def _kind_of(state: Mapping[str, Any]) -> str:
    if "vector" in state:
        return "native"
    return "async" if "replaced" in state["copies"][0] else "sync"


class SteppedEnvironment(CopiesEnvironment):
    """Copies that are stepped one by one, in this process or in processes of their own.

    An episode that ends begins anew in the same step.

    Args:
        recipe: makes a copy.
        num_envs: how many copies.
        spaces: those of the environment, as networks see them.
        max_restarts: how often copies may break, all of them together.
        seconds: how long a copy in a process of its own may take for a step; None: in this process.
        executor: where such processes live; None: on this machine.
    """

    _copies: Sequence[LocalCopy | RemoteCopy]

    def __init__(
        self,
        recipe: Recipe,
        num_envs: int,
        spaces: Spaces,
        max_restarts: int,
        seconds: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        simulators.register()
        self._executor = executor
        self._recipe, self._seconds, self._allowed = recipe, seconds, max_restarts
        super().__init__(recipe.id, {AGENT: spaces}, num_envs, max_restarts=max_restarts)
        self._space = spaces
        self._raw = np.zeros((num_envs, *spaces.shape), spaces.raw.dtype)
        self._near = [copy for copy in self._copies if isinstance(copy, LocalCopy)]
        self._far = [copy for copy in self._copies if isinstance(copy, RemoteCopy)]

    def _new_copy(self, index: int, crashes: Crashes) -> LocalCopy | RemoteCopy:
        if self._seconds is None:
            return LocalCopy(self._recipe, index, crashes)
        seconds, executor = self._seconds, self._executor
        return RemoteCopy(self._recipe, index, crashes, self._allowed, seconds, executor)

    def _begin_copies(self, seed: int | None) -> list[Any]:
        seeds = copy_seeds(seed, self.num_envs)
        for far, each in zip(self._far, seeds, strict=bool(self._far)):
            far.begin_reset(each)
        return [far.end_reset() for far in self._far] or [
            near.reset(each) for near, each in zip(self._near, seeds, strict=True)
        ]

    def _step_copies(self, actions: Mapping[str, np.ndarray]) -> list[Outcome]:
        taken = actions[AGENT]
        if self._near:
            return [near.step(action) for near, action in zip(self._near, taken, strict=True)]
        for far, action in zip(self._far, taken, strict=True):
            far.begin_step(action)
        return [far.end_step() for far in self._far]

    def _seen(self, agent: str, begun: Sequence[Any]) -> np.ndarray:
        for i, observation in enumerate(begun):
            try:
                self._check_shape(observation)
                self._raw[i] = observation
            except (TypeError, ValueError, OverflowError) as error:
                raise self._wrong(error) from error
        return self._space.observations(self._raw)

    def _joined(self, agent: str, stepped: Sequence[Outcome]) -> AgentStep:
        raw, final, shape = self._raw, None, self._raw.shape[1:]
        reward = np.empty(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        try:
            for i, (observation, reward[i], ends, is_cut, last) in enumerate(stepped):
                if ends or is_cut:
                    terminated[i] = ends
                    # What ended by itself and at the time limit at once, ended by itself.
                    truncated[i] = not ends
                    final = raw.copy() if final is None else final
                    # Where a copy broke, what was seen before still stands there.
                    if last is not None:
                        self._check_shape(last)
                        final[i] = last
                if getattr(observation, "shape", None) != shape:
                    self._check_shape(observation)
                raw[i] = observation
        except (TypeError, ValueError, OverflowError) as error:
            raise self._wrong(error) from error
        last_seen = None if final is None else self._space.observations(final)
        seen = self._space.observations(raw)
        return AgentStep(seen, reward, terminated, truncated, last_seen)

    def _check_shape(self, observation: Any) -> None:
        # Not left to the assignment, which takes a single number for a row of them.
        shape = np.shape(observation)
        if shape != self._raw.shape[1:]:
            raise ContractError(
                f"environment {self._recipe.id} gave an observation of shape {shape}, and its "
                f"observation space has {self._raw.shape[1:]}; mend the space or wrap it"
            )

    def _wrong(self, error: Exception) -> ContractError:
        return ContractError(
            f"environment {self._recipe.id} gave an observation or a reward of the wrong shape or "
            f"type ({one_line(error)}); mend its spaces or wrap it"
        )

    def _trial(self) -> str | None:
        # Random actions may end the process of an environment that has one of its own.
        return self._copies[0].unsaved()

    def _held(self) -> dict[str, Any]:
        return {**super()._held(), "observation": self._raw.copy()}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_kind(self, "async" if self._far else "sync", state)
        super()._check_state(state)

    def _put_back(self, state: Mapping[str, Any]) -> None:
        super()._put_back(state)
        self._raw[...] = state["observation"]

    @property
    def render_fps(self) -> float:
        """How many frames of the environment make a second."""
        metadata = self._near[0].environment.metadata if self._near else {}
        return float(metadata.get("render_fps") or super().render_fps)
