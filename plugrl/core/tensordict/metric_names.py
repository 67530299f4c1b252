"""Which metrics a run of small networks reports, as far as that shows before it begins."""

from __future__ import annotations

import difflib
from collections.abc import Collection

#: How the metrics of each iteration and of evaluations begin.
FAMILIES = ("rollout", "train", "validation", "time", "message_regression")
#: What episodes give; environments may add numbers of their own, and losses have theirs.
OF_EPISODES = ("episodes", "mean_episode_return", "mean_episode_length")
_OF = {
    "rollout": (*OF_EPISODES, "frames", "reset_steps", "crashes"),
    "train": ("accuracy", "loss", "grad_norm", "explained_variance", "entropy"),
    "validation": (*OF_EPISODES, "accuracy"),
    "time": ("rollout", "train", "validate", "steps_per_second"),
}


#: What the numbers of episodes are called elsewhere.
_ELSEWHERE = dict.fromkeys(
    (
        *("return", "returns", "mean_return", "episode_return", "ep_rew_mean"),
        *("reward", "rewards", "mean_reward", "episode_reward"),
    ),
    "mean_episode_return",
) | dict.fromkeys(
    ("length", "lengths", "mean_length", "episode_length", "ep_len_mean"), "mean_episode_length"
)


def metric_fault(
    name: str, agents: Collection[str], *, closed: bool, known_environment: bool = False
) -> str | None:
    """Why a run reports no metric of this name; None: it does, or may.

    Args:
        name: ``FAMILY/NAME``, or with an agent or policy between the two.
        agents: those of the environment.
        closed: whether there are no families but :data:`FAMILIES`.
        known_environment: whether the environment has no numbers that are called as those of
            episodes are elsewhere.
    """
    family, *between, last = name.split("/") if "/" in name else (name, "")
    if closed and known_environment and not between:
        alone = name in _ELSEWHERE
        of_episodes = _ELSEWHERE.get(name if alone else last)
        if of_episodes and (alone or family in ("rollout", "validation")):
            meant_here = f"{'validation' if alone else family}/{of_episodes}"
            return f"this run reports no metric {name!r}; did you mean {meant_here}?"
    meant: list[str | None] = [family, *between, last]
    if family not in FAMILIES or not last:
        meant[0] = _close(family, FAMILIES, 0.6)
        if not closed and meant[0] is None:
            return None
    elif between and (agent := _close(between[0], agents, 0.9)):
        meant[1] = agent
    elif metric := _close(last, _OF.get(family, ()), 0.9):
        meant[-1] = metric
    else:
        return None
    if all(meant):
        remedy = f"did you mean {'/'.join(map(str, meant))}?"
    else:
        remedy = f"names begin with {', '.join(f'{each}/' for each in FAMILIES)}"
    return f"this run reports no metric {name!r}; {remedy}"


def _close(name: str, known: Collection[str], cutoff: float) -> str | None:
    """What was meant by ``name``; an environment may have names a little like those of all."""
    if name in known:
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)
