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


def metric_fault(name: str, agents: Collection[str], *, closed: bool) -> str | None:
    """Why a run reports no metric of this name; None: it does, or may.

    Args:
        name: ``FAMILY/NAME``, or with an agent or policy between the two.
        agents: those of the environment.
        closed: whether there are no families but :data:`FAMILIES`.
    """
    family, *between, last = name.split("/") if "/" in name else (name, "")
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
