"""Copies that are stepped together by code of the environment's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from plugrl.core.errors import ConfigError, ContractError, PlugrlError
from plugrl.core.tensordict.environment.copies import ResumableEnvironment, crash, restoring
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.state import capture, restore
from plugrl.core.tensordict.environment.vector_environment import AGENT, AgentStep
from plugrl.scenarios.gymnasium import simulators
from plugrl.scenarios.gymnasium.local_copy import SETTINGS
from plugrl.scenarios.gymnasium.recipe import Recipe
from plugrl.scenarios.gymnasium.seeding import copy_seeds, restart_seed, seed_spaces
from plugrl.scenarios.gymnasium.stepped import check_kind
from plugrl.scenarios.gymnasium.trial import unsaved

#: To look for it takes a fifth of the time of ``.any()``, in each step of a small environment.
_TRUE = b"\1"


def autoreset_mode(vector: VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    """When copies that have ended are reset.

    Raises:
        ConfigError: they do not by themselves.
    """
    # What says nothing is from before there was a choice.
    found = vector.metadata.get("autoreset_mode") or AutoresetMode.NEXT_STEP
    mode = found if isinstance(found, AutoresetMode) else AutoresetMode(found)
    if mode is AutoresetMode.DISABLED:
        raise ConfigError(
            f"environment {name} does not begin anew by itself when it is vectorized natively "
            "(AutoresetMode.DISABLED); write scenario.vectorization: sync"
        )
    return mode


class NativeEnvironment(ResumableEnvironment):
    """A vector environment that is registered beside the single one.

    Raises:
        ConfigError: copies that end do not begin anew.
    """

    def __init__(self, recipe: Recipe, num_envs: int, spaces: Spaces, max_restarts: int) -> None:
        simulators.register()
        super().__init__(recipe.id, num_envs, {AGENT: spaces}, max_restarts)
        self._recipe, self._space = recipe, spaces
        self._vector = recipe.make_vector(num_envs)
        mode = autoreset_mode(self._vector, recipe.id)
        self._is_next_step = mode is AutoresetMode.NEXT_STEP
        self._seed: int | None = None
        self._restarts = 0
        #: Copies that use the next step to begin anew; None: none does.
        self._ended: np.ndarray | None = None
        #: What was seen last; a copy, since the environment may change its arrays in place.
        self._last: Any = None

    def _trial(self) -> str | None:
        return unsaved(lambda: self._recipe.make_vector(self.num_envs))

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin new episodes in all copies."""
        # Many seed their copies with numbers that follow on each other: those of two runs whose
        # seeds do must not be the same.
        (seed,) = copy_seeds(seed, 1)
        self._seed = self._seed if seed is None else seed
        try:
            observation = self._begin_episodes(seed)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            observation = self._rebuilt("reset()", error)
        return {AGENT: observation}

    def _begin_episodes(self, seed: int | None) -> np.ndarray:
        seed_spaces(self._vector, seed)
        first = self._vector.reset(seed=seed)[0]
        observed = self._space.observations(first)
        self._space.check(observed, None, AGENT)
        self._ended, self._last = None, np.array(first)
        return observed

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, AgentStep]:
        """Take one action in every copy; see ``VectorEnvironment.step`` for shapes and errors."""
        spaces = self._space
        batch = spaces.actions(actions[AGENT], self.num_envs)
        try:
            stepped = self._vector.step(batch)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            return {AGENT: self._cut_off(error)}
        observed = spaces.observations(stepped[0])
        reward = np.array(stepped[1], np.float32)
        spaces.check(observed, reward, AGENT)
        real = None if self._ended is None else ~self._ended
        ended = np.logical_or(stepped[2], stepped[3])
        self._ended, self._last = None, np.array(stepped[0])
        if _TRUE not in ended.tobytes():
            return {AGENT: AgentStep(observed, reward, ended, ended.copy(), None, real)}
        terminated = np.array(stepped[2], bool)
        # What ended by itself and at the time limit at once, ended by itself.
        truncated = ended & ~terminated
        if self._is_next_step:
            final, self._ended = observed.copy(), ended
        else:
            final = self._final(stepped[4], observed, ended)
        return {AGENT: AgentStep(observed, reward, terminated, truncated, final, real)}

    def _final(self, info: dict[str, Any], observed: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The final observations of copies that were reset in the same step."""
        given = info.get("final_obs")
        if given is None:
            raise ContractError(
                f"environment {self._recipe.id} begins anew in the same step and gives no "
                "final_obs in its info; write scenario.vectorization: sync"
            )
        final = observed.copy()
        rows = np.flatnonzero(ended)
        final[rows] = self._space.observations(np.stack([given[row] for row in rows]))
        self._space.check(final, None, AGENT)
        return final

    def _cut_off(self, error: BaseException) -> AgentStep:
        """A step that marks all copies as broken, since the failing one is unknown."""
        final, began = self._space.observations(self._last), self._ended
        observed = self._rebuilt("step()", error)
        truncated = np.ones(self.num_envs, bool) if began is None else ~began
        return AgentStep(
            observed,
            np.zeros(self.num_envs, np.float32),
            np.zeros(self.num_envs, bool),
            truncated,
            final,
            None if began is None else ~began,
        )

    def _rebuilt(self, doing: str, error: BaseException) -> np.ndarray:
        while True:
            self._restarts += 1
            what = crash(error, doing, str(self._recipe.spec.vector_entry_point))
            self._crashes.add(f"all copies, one of which {what}", error)
            with suppress(Exception):
                self._vector.close()
            try:
                self._vector = self._recipe.make_vector(self.num_envs)
                return self._begin_episodes(restart_seed(self._seed, self._restarts))
            except (Exception, SystemExit) as again:
                error = again

    def _held(self) -> dict[str, Any]:
        ended = np.zeros(self.num_envs, bool) if self._ended is None else self._ended.copy()
        return {
            "vector": capture(self._vector),
            "ended": ended,
            "last": self._last.copy(),
            "seed": self._seed,
            "restarts": self._restarts,
        }

    def _check_state(self, state: Mapping[str, Any]) -> None:
        check_kind(self, "native", state)
        self._check_count(len(state["ended"]), self.num_envs)

    def _put_back(self, state: Mapping[str, Any]) -> None:
        # What is made by the first reset must be there to be filled.
        self._vector.reset(seed=0)
        with restoring(self.name, SETTINGS):
            restore(self._vector, state["vector"])
        self._seed, self._restarts = state["seed"], state["restarts"]
        ended = np.array(state["ended"], bool)
        self._ended = ended if ended.any() else None
        self._last = np.array(state["last"])

    def close(self) -> None:
        """Close the copies."""
        with suppress(Exception):
            self._vector.close()
