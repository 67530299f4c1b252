"""``GymnasiumEnvironment``: what all ways to step several copies have in common."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from plugrl.core.errors import RunError
from plugrl.core.tensordict.environment.spaces import Spaces
from plugrl.core.tensordict.environment.vector_environment import (
    AGENT,
    AgentSpaces,
    VectorEnvironment,
)
from plugrl.scenarios.gymnasium import simulators
from plugrl.scenarios.gymnasium.local_copy import too_often
from plugrl.scenarios.gymnasium.recipe import Recipe

logger = logging.getLogger(__name__)


class GymnasiumEnvironment(VectorEnvironment):
    """Copies of an environment of gymnasium; subclasses step them.

    Args:
        recipe: makes a copy.
        num_envs: how many copies.
        spaces: those of the environment, as networks see them.
        max_restarts: how often copies may break, all of them together.
    """

    def __init__(self, recipe: Recipe, num_envs: int, spaces: Spaces, max_restarts: int) -> None:
        simulators.register()
        self.num_envs = num_envs
        self.spaces: Mapping[str, AgentSpaces] = {AGENT: spaces.agent}
        self.crashes = 0
        self._recipe = recipe
        self._spaces = spaces
        self._max_restarts = max_restarts

    def _broke(self, what: str) -> None:
        """Count a copy that broke.

        Raises:
            RunError: there were too many.
        """
        self.crashes += 1
        if self.crashes > self._max_restarts:
            raise too_often(self._recipe.id, what, self._max_restarts)
        logger.warning(
            "environment %s: %s; it is built anew (%d of at most %d times), and its episode counts "
            "as cut off",
            self._recipe.id,
            what,
            self.crashes,
            self._max_restarts,
        )

    @cached_property
    def unsaved(self) -> str | None:
        """Why the state of the copies cannot be saved; None: it can. Found by trying, once."""
        reason = self._tried()
        if reason is not None:
            logger.info("environment %s: its state cannot be saved: %s", self._recipe.id, reason)
        return reason

    @abstractmethod
    def _tried(self) -> str | None:
        """Why copies like these cannot be saved."""

    def state_dict(self) -> dict[str, Any] | None:
        """The copies and what was seen of them; None where :attr:`unsaved` says why."""
        held = None if self.unsaved else self._held()
        return None if held is None else {"crashes": self.crashes, **held}

    @abstractmethod
    def _held(self) -> dict[str, Any] | None:
        """The state of the copies."""

    @property
    @abstractmethod
    def _kind(self) -> str:
        """The value of ``scenario.vectorization`` that stands for how copies are stepped."""

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of copies that were other ones, or stepped in another way.

        Raises:
            RunError: it is; the text says what to set.
        """
        kind = _kind_of(state)
        if kind != self._kind:
            raise RunError(
                f"the checkpoint holds copies of environment {self._recipe.id} that were stepped "
                f"by {kind}, and now it is {self._kind}; set scenario.vectorization={kind}"
            )
        num_envs = len(state["ended"] if kind == "native" else state["copies"])
        if num_envs != self.num_envs:
            raise RunError(
                f"the checkpoint holds {num_envs} copies of environment {self._recipe.id} and the "
                f"configuration asks for {self.num_envs}; set scenario.num_envs={num_envs}"
            )
        self.crashes = int(state["crashes"])


def _kind_of(state: Mapping[str, Any]) -> str:
    if "vector" in state:
        return "native"
    return "async" if "replaced" in state["copies"][0] else "sync"
