"""Copies that are stepped one by one, in this process or each in one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plugrl.core.errors import ContractError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.tensordict.environment.copies import ResumableEnvironment
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import AGENT, AgentStep
from plugrl.scenarios.gymnasium import simulators
from plugrl.scenarios.gymnasium.local_copy import LocalCopy, Outcome
from plugrl.scenarios.gymnasium.recipe import Recipe
from plugrl.scenarios.gymnasium.remote_copy import RemoteCopy
from plugrl.scenarios.gymnasium.seeding import copy_seeds

_FPS = 30.0


class GymnasiumEnvironment(ResumableEnvironment):
    """Copies of an environment of gymnasium; subclasses step them.

    Args:
        recipe: makes a copy.
        num_envs: how many copies.
        spaces: those of the environment, as networks see them.
        max_restarts: how often copies may break, all of them together.
    """

    def __init__(self, recipe: Recipe, num_envs: int, spaces: Spaces, max_restarts: int) -> None:
        simulators.register()
        super().__init__(recipe.id, num_envs, {AGENT: spaces}, max_restarts)
        self._recipe = recipe
        self._space = spaces

    @property
    def _kind(self) -> str:
        """The value of ``scenario.vectorization`` that stands for how copies are stepped."""
        raise NotImplementedError

    def _check_state(self, state: Mapping[str, Any]) -> None:
        kind = _kind_of(state)
        if kind != self._kind:
            raise RunError(
                f"the checkpoint holds copies of environment {self.name} that were stepped by "
                f"{kind}, and now it is {self._kind}; set scenario.vectorization={kind}"
            )
        self._check_count(
            len(state["ended"] if kind == "native" else state["copies"]), self.num_envs
        )


def _kind_of(state: Mapping[str, Any]) -> str:
    if "vector" in state:
        return "native"
    return "async" if "replaced" in state["copies"][0] else "sync"


class SteppedEnvironment(GymnasiumEnvironment):
    """Copies that are stepped one by one, in this process or in processes of their own.

    An episode that ends begins anew in the same step.

    Args:
        seconds: how long a copy in a process of its own may take for a step; None: in this process.
    """

    def __init__(
        self,
        recipe: Recipe,
        num_envs: int,
        spaces: Spaces,
        max_restarts: int,
        seconds: float | None = None,
    ) -> None:
        super().__init__(recipe, num_envs, spaces, max_restarts)
        self._raw = np.zeros((num_envs, *spaces.shape), spaces.raw.dtype)
        self._near: list[LocalCopy] = []
        self._far: list[RemoteCopy] = []
        for i in range(num_envs):
            if seconds is None:
                self._near.append(LocalCopy(recipe, i, self._crashes))
            else:
                self._far.append(RemoteCopy(recipe, i, self._crashes, max_restarts, seconds))
        self._all: list[LocalCopy | RemoteCopy] = [*self._near, *self._far]

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin all episodes anew, each copy from a seed of its own."""
        seeds = copy_seeds(seed, self.num_envs)
        for far, each in zip(self._far, seeds, strict=bool(self._far)):
            far.begin_reset(each)
        first = [far.end_reset() for far in self._far] or [
            near.reset(each) for near, each in zip(self._near, seeds, strict=True)
        ]
        for i, observation in enumerate(first):
            self._fill(i, observation)
        observations = self._space.observations(self._raw)
        self._space.check(observations, None, AGENT)
        return {AGENT: observations}

    def _fill(self, index: int, observation: Any) -> None:
        try:
            self._check_shape(observation)
            self._raw[index] = observation
        except (TypeError, ValueError, OverflowError) as error:
            raise self._wrong(error) from error

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

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action in every copy; see ``VectorEnvironment.step`` for shapes and errors."""
        count, spaces = self.num_envs, self._space
        outcomes = self._outcomes(spaces.actions(actions[AGENT], count))
        reward = np.empty(count, np.float32)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        last = self._taken(outcomes, reward, terminated, truncated)
        observed = spaces.observations(self._raw)
        spaces.check(observed, reward, AGENT)
        if last is None:
            return {AGENT: AgentStep(observed, reward, terminated, truncated)}
        final = spaces.observations(last)
        spaces.check(final, None, AGENT)
        return {AGENT: AgentStep(observed, reward, terminated, truncated, final)}

    def _taken(
        self,
        outcomes: Sequence[Outcome],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> np.ndarray | None:
        """Fill the arrays of a step; give the last observations where episodes ended."""
        raw, final, shape = self._raw, None, self._raw.shape[1:]
        try:
            for i, (observation, reward[i], ends, is_cut, last) in enumerate(outcomes):
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
        return final

    def _outcomes(self, actions: np.ndarray) -> list[Outcome]:
        if self._near:
            return [near.step(action) for near, action in zip(self._near, actions, strict=True)]
        for far, action in zip(self._far, actions, strict=True):
            far.begin_step(action)
        return [far.end_step() for far in self._far]

    @property
    def _kind(self) -> str:
        return "async" if self._far else "sync"

    def _trial(self) -> str | None:
        # Random actions may end the process of an environment that has one of its own.
        return self._all[0].unsaved()

    def _held(self) -> dict[str, Any]:
        copies = [each.state_dict() for each in self._all]
        return {"copies": copies, "observation": self._raw.copy()}

    def _put_back(self, state: Mapping[str, Any]) -> None:
        for each, held in zip(self._all, state["copies"], strict=True):
            each.load_state_dict(held)
        self._raw[...] = state["observation"]

    def render(self) -> np.ndarray | None:
        """A frame of the first copy; None: it is not made to be looked at."""
        if not self._near or self._recipe.render_mode is None:
            return None
        return np.asarray(self._near[0].render(), np.uint8)

    @property
    def render_fps(self) -> float:
        """How many frames of the environment make a second."""
        metadata = self._near[0].environment.metadata if self._near else {}
        return float(metadata.get("render_fps") or _FPS)

    def close(self) -> None:
        """Close the copies, and end their processes."""
        for each in self._all:
            each.close()
