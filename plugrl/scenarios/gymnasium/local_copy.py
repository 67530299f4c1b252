"""``LocalCopy``: one environment in this process, which is reset when an episode ends."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from plugrl.core.errors import ContractError, PlugrlError
from plugrl.core.tensordict.environment.copies import Copy, Crashes
from plugrl.scenarios.gymnasium.recipe import Recipe
from plugrl.scenarios.gymnasium.seeding import restart_seed, seed_spaces
from plugrl.scenarios.gymnasium.trial import unsaved

#: Observation, reward, terminated, truncated, and the last observation of an episode that ended.
#: None in its place where the environment broke: nobody knows more than what was seen before.
Outcome = tuple[Any, Any, bool, bool, Any]
#: What says which environment it is.
SETTINGS = "scenario.id, env_kwargs and wrappers"


def _describe(value: Any) -> str:
    """A value in a few words."""
    kind = type(value).__name__
    return f"a {kind} of {len(value)} values" if isinstance(value, (tuple, list)) else f"a {kind}"


class LocalCopy(Copy):
    """One environment in this process.

    Args:
        recipe: makes it.
        index: its place among the copies.
        crashes: counts what breaks.
    """

    SETTINGS = SETTINGS

    def __init__(self, recipe: Recipe, index: int, crashes: Crashes) -> None:
        super().__init__(recipe.make, index, crashes)
        self._recipe = recipe
        #: Of the next reset; None: the generators go on.
        self._next_seed: int | None = None
        self._is_new = True
        self.environment = recipe.make()

    def reset(self, seed: int | None) -> Any:
        """Begin an episode; without a seed the generators go on."""
        if seed is not None:
            self._seed = self._next_seed = seed
        return self._begin()

    def step(self, action: Any) -> Outcome:
        """Take an action; at the end of an episode the observation begins the next one."""
        try:
            stepped = self.environment.step(action)
            if self._is_new:
                self._check(stepped)
            observation, reward, terminated, truncated, _ = stepped
            ends, is_cut = bool(terminated), bool(truncated)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            self._broke("step()", error)
            return self._begin(), 0.0, False, True, None
        if ends or is_cut:
            # The environment may reuse its arrays when it begins anew.
            last, earned = np.array(observation), deepcopy(reward)
            return self._begin(), earned, ends, is_cut, last
        return observation, reward, False, False, None

    def _reset(self) -> Any:
        seed, self._next_seed = self._next_seed, None
        seed_spaces(self.environment, seed)
        begun = self.environment.reset(seed=seed)
        if not (isinstance(begun, (tuple, list)) and len(begun) == 2):
            raise self._error(f"reset() gave {_describe(begun)}, not observation and info")
        return begun[0]

    def _broke(self, doing: str, error: BaseException) -> None:
        super()._broke(doing, error)
        self._next_seed = restart_seed(self._seed, self.restarts)

    def _check(self, stepped: Any) -> None:
        """Refuse what no step of gymnasium gives. The first one is looked at: it costs time."""
        if not (isinstance(stepped, (tuple, list)) and len(stepped) == 5):
            raise self._error(
                f"step() gave {_describe(stepped)}, not observation, reward, terminated, truncated "
                "and info"
            )
        for name, flag in zip(("terminated", "truncated"), stepped[2:4], strict=True):
            if np.asarray(flag).dtype.kind not in "biuf" or np.shape(flag) != ():
                raise self._error(f"step() gave {_describe(flag)} as {name}, not True or False")
        self._is_new = False

    def _error(self, what: str) -> ContractError:
        return ContractError(f"environment {self._recipe.id}: {what}; mend the environment")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave; see the base class."""
        self._next_seed = 0
        super().load_state_dict(state)

    @property
    def _package(self) -> str:
        return str(self._recipe.spec.entry_point)

    def render(self) -> Any:
        """A frame."""
        return self.environment.render()

    def unsaved(self) -> str | None:
        """Why environments like this one cannot be saved; None: they can. It tries others."""
        return unsaved(self._recipe.make)
