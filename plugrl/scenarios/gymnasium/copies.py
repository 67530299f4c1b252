"""``Copy``: one environment that begins anew when it ends, and is built anew when it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np

from plugrl.core.blame import one_line, raised_at
from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.tensordict.environment_state import capture, restore
from plugrl.scenarios.gymnasium.making import Recipe
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
        self.environment: gymnasium.Env[Any, Any] = recipe.make()

    def reset(self, seed: int | None) -> Any:
        """Begin an episode; without a seed the generators go on."""
        if seed is not None:
            self._seed = seed
        return self._begun(seed)

    def step(self, action: Any) -> Outcome:
        """Take an action; at the end of an episode the observation begins the next one."""
        try:
            observation, reward, terminated, truncated, _ = self.environment.step(action)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            return self._rebuilt("step()", error), 0.0, False, True, None
        if terminated or truncated:
            # The environment may reuse its arrays.
            last = np.array(observation)
            return self._begun(None), reward, bool(terminated), bool(truncated), last
        return observation, reward, False, False, None

    def _begun(self, seed: int | None) -> Any:
        try:
            return self.environment.reset(seed=seed)[0]
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            return self._rebuilt("reset()", error)

    def _rebuilt(self, doing: str, error: BaseException) -> Any:
        while True:
            self._broke(doing, error)
            with suppress(Exception):
                self.environment.close()
            try:
                self.environment = self._recipe.make()
                return self.environment.reset(seed=restart_seed(self._seed, self._restarts))[0]
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
        restore(self.environment, state["environment"])
        self._seed, self._restarts = state["seed"], state["restarts"]

    def unsaved(self) -> str | None:
        """Why environments like this one cannot be saved; None: they can. It tries others."""
        return unsaved(self._recipe.make)

    def close(self) -> None:
        """Release what the environment holds."""
        with suppress(Exception):
            self.environment.close()


def restart_seed(seed: int | None, restarts: int) -> int | None:
    """The seed of a copy that was built anew ``restarts`` times."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0])
