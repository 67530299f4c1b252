"""Whether the state of an environment of gymnasium can be saved, found by trying."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from plugrl.core.tensordict.environment.state import resume_fault
from plugrl.scenarios.gymnasium import simulators
from plugrl.scenarios.gymnasium.seeding import seed_spaces


def unsaved(make: Callable[[], Any]) -> str | None:
    """Why the state of what ``make`` makes cannot be saved; None: it can.

    Args:
        make: makes an environment, or a vector environment.
    """
    simulators.register()
    return resume_fault(make, _play)


def _play(environment: Any, seed: int | None, steps: range) -> list[Any]:
    """Everything that an environment gives for actions that depend on their number alone."""
    seed_spaces(environment, seed)
    seen: list[Any] = [] if seed is None else [environment.reset(seed=seed)[0]]
    draw: Callable[[int], Any] = _drawer(environment.action_space)
    is_single = isinstance(environment, gymnasium.Env)
    for number in steps:
        observation, reward, terminated, truncated, _ = environment.step(draw(number))
        seen += [np.array(observation), reward, terminated, truncated]
        if (is_single and (terminated or truncated)) or number % 17 == 16:
            seen.append(np.array(environment.reset()[0]))
    return seen


def _drawer(space: gymnasium.Space[Any]) -> Callable[[int], Any]:
    # A space of its own: some environments draw from theirs.
    own = copy.deepcopy(space)

    def draw(number: int) -> Any:
        own.seed(number)
        return own.sample()

    return draw
