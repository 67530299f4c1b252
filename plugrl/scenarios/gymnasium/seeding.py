"""Seeds of copies, and of what gymnasium's own ``reset(seed)`` leaves unseeded: spaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

_NAMES = ("action_space", "observation_space", "single_action_space", "single_observation_space")


def copy_seeds(seed: int | None, count: int) -> list[int | None]:
    """The seeds of ``count`` copies, all different, for the seed of a run."""
    if seed is None:
        return [None] * count
    return [int(word) for word in np.random.SeedSequence(seed).generate_state(count)]


def restart_seed(seed: int | None, restarts: int) -> int | None:
    """The seed of a copy that was rebuilt ``restarts`` times."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0])


def seed_spaces(environment: Any, seed: int | None) -> None:
    """Seed the spaces of an environment, of its wrappers and of the copies it steps.

    Some environments draw from them, and vector environments copy their generators. None: they
    go on as they are.
    """
    if seed is None:
        return
    # Not the seed itself: the environment's own generator has that.
    for number, space in enumerate(_spaces(environment), start=1):
        words = np.random.SeedSequence([seed, number, len(_NAMES)]).generate_state(1)
        space.seed(int(words[0]))


def _spaces(environment: Any) -> Iterator[gymnasium.Space[Any]]:
    """Each space once, the outermost first."""
    waiting, met = [environment], set()
    while waiting:
        holder = waiting.pop(0)
        for name in _NAMES:
            space = getattr(holder, name, None)
            if isinstance(space, gymnasium.Space) and id(space) not in met:
                met.add(id(space))
                yield space
        wrapped = getattr(holder, "env", None)
        waiting += [wrapped] if wrapped is not None else []
        waiting += list(getattr(holder, "envs", None) or ())
