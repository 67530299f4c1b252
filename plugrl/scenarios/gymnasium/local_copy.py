"""``Copy``: one environment that begins anew when it ends, and is built anew when it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from plugrl.core.errors import ContractError, PlugrlError, RunError
from plugrl.core.plugins.blame import one_line, raised_at
from plugrl.core.tensordict.environment.state import Unsavable, capture, restore
from plugrl.scenarios.gymnasium.recipe import Recipe
from plugrl.scenarios.gymnasium.seeding import restart_seed, seed_spaces
from plugrl.scenarios.gymnasium.trial import unsaved

#: Observation, reward, terminated, truncated, and the last observation of an episode that ended.
#: None in its place where the environment broke: nobody knows more than what was seen before.
Outcome = tuple[Any, Any, bool, bool, Any]


def too_often(name: str, what: str, allowed: int) -> RunError:
    """The error that ends a run whose environments keep breaking."""
    return RunError(
        f"environment {name} broke more often than scenario.max_restarts={allowed} allows; at last "
        f"{what}; mend the environment, or allow more"
    )


def _told(value: Any) -> str:
    """A value in a few words."""
    kind = type(value).__name__
    return f"a {kind} of {len(value)} values" if isinstance(value, (tuple, list)) else f"a {kind}"


class Copy:
    """One environment in this process.

    Args:
        recipe: makes it.
        index: its place among the copies.
        allowed: how often it may break.
        tell: called with one line when it has broken.
    """

    def __init__(
        self, recipe: Recipe, index: int, allowed: int, tell: Callable[[str], None]
    ) -> None:
        self._recipe = recipe
        self._index = index
        self._allowed = allowed
        self._tell = tell
        self._seed: int | None = None
        self._restarts = 0
        self._is_new = True
        self.environment: gymnasium.Env[Any, Any] = recipe.make()

    def reset(self, seed: int | None) -> Any:
        """Begin an episode; without a seed the generators go on."""
        if seed is not None:
            self._seed = seed
        return self._begun(seed)

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
            return self._rebuilt("step()", error), 0.0, False, True, None
        if ends or is_cut:
            # The environment may reuse its arrays when it begins anew.
            last, earned = np.array(observation), deepcopy(reward)
            return self._begun(None), earned, ends, is_cut, last
        return observation, reward, False, False, None

    def _begun(self, seed: int | None) -> Any:
        try:
            return self._first(seed)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            return self._rebuilt("reset()", error)

    def _first(self, seed: int | None) -> Any:
        seed_spaces(self.environment, seed)
        begun = self.environment.reset(seed=seed)
        if not (isinstance(begun, (tuple, list)) and len(begun) == 2):
            raise self._wrong(f"reset() gave {_told(begun)}, not observation and info")
        return begun[0]

    def _check(self, stepped: Any) -> None:
        """Refuse what no step of gymnasium gives. The first one is looked at: it costs time."""
        if not (isinstance(stepped, (tuple, list)) and len(stepped) == 5):
            raise self._wrong(
                f"step() gave {_told(stepped)}, not observation, reward, terminated, truncated and "
                "info"
            )
        for name, flag in zip(("terminated", "truncated"), stepped[2:4], strict=True):
            if np.asarray(flag).dtype.kind not in "biuf" or np.shape(flag) != ():
                raise self._wrong(f"step() gave {_told(flag)} as {name}, not True or False")
        self._is_new = False

    def _wrong(self, what: str) -> ContractError:
        return ContractError(f"environment {self._recipe.id}: {what}; mend the environment")

    def _rebuilt(self, doing: str, error: BaseException) -> Any:
        while True:
            self._broke(doing, error)
            with suppress(Exception):
                self.environment.close()
            try:
                self.environment = self._recipe.make()
                return self._first(restart_seed(self._seed, self._restarts))
            except PlugrlError:
                raise
            except (Exception, SystemExit) as again:
                error = again

    def _broke(self, doing: str, error: BaseException) -> None:
        self._restarts += 1
        package = str(self._recipe.spec.entry_point).partition(":")[0].partition(".")[0]
        at = raised_at(error, {package})
        what = f"copy {self._index} raised {one_line(error)} in {doing}{f' at {at}' if at else ''}"
        if self._restarts > self._allowed:
            raise too_often(self._recipe.id, what, self._allowed) from error
        self._tell(what)

    def render(self) -> Any:
        """A frame."""
        return self.environment.render()

    def state_dict(self) -> dict[str, Any] | None:
        """What :meth:`load_state_dict` needs; None: something cannot be saved."""
        held = capture(self.environment)
        if held is None:
            return None
        return {"environment": held, "seed": self._seed, "restarts": self._restarts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        # What is made by the first reset must be there to be filled.
        self.environment.reset(seed=0)
        try:
            restore(self.environment, state["environment"])
        except (Unsavable, AttributeError, LookupError, TypeError, ValueError) as error:
            raise unfit(self._recipe.id, error) from error
        self._seed, self._restarts = state["seed"], state["restarts"]

    def unsaved(self) -> str | None:
        """Why environments like this one cannot be saved; None: they can. It tries others."""
        return unsaved(self._recipe.make)

    def close(self) -> None:
        """Release what the environment holds."""
        with suppress(Exception):
            self.environment.close()


def unfit(name: str, error: Exception) -> RunError:
    """The error about an environment that cannot take back its state."""
    return RunError(
        f"environment {name} cannot take back its saved state ({error}); set scenario.id, "
        "env_kwargs and wrappers to what they were"
    )
