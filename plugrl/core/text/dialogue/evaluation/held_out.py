"""Dialogues about prompts that nothing is trained on: one way through each, always the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.text.dialogue.evaluation.metrics import diversity
from plugrl.core.text.dialogue.evaluation.success import success_by_turn, warn_of_missing

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.environment import Environment
    from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree

#: Sets seeds of held-out dialogues apart from those of training.
_HELD_OUT = 0x5EED


def held_out_seeds(count: int) -> list[int]:
    """Seeds of ``count`` dialogues: the same whenever they are asked for."""
    draws = np.random.default_rng(_HELD_OUT)
    return [int(number) for number in draws.integers(2**31, size=count)]


def held_out(
    environment: Environment, prompts: Sequence[Any], *, attempts: int = 1, prefix: str = "test"
) -> tuple[dict[str, float], list[RolloutTree]]:
    """What the tester is worth as it is now, and its dialogues.

    Args:
        environment: grows them, with the tester's weights of now.
        prompts: what they are about.
        attempts: dialogues about each prompt.
        prefix: of the metrics, see :func:`dialogue_metrics`.
    """
    environment.system.updated()
    asked = [prompt for prompt in prompts for _ in range(attempts)]
    trees = environment.eval_rollouts(asked, held_out_seeds(len(asked)))
    nodes = [list(tree.nodes()) for tree in trees]
    reasons = (node.failure for path in nodes for node in path if node.failure)
    warn_of_missing([_scores_of(path) for path in nodes], next(reasons, "nothing was said"))
    found = dialogue_metrics(trees, environment.threshold)
    return {f"{prefix}/{name}": value for name, value in found.items()}, trees


def dialogue_metrics(trees: Sequence[RolloutTree], threshold: float = 0.5) -> dict[str, float]:
    """What came of dialogues, each a tree of width 1, with the share that lacks a score.

    ``success`` is the share of dialogues that are known to have an exchange of at least
    ``threshold``, ``success_at_most`` the share that may have one, ``failed`` the share without
    all scores. ``score`` is the mean of the highest known scores. ``reward`` is the mean over
    exchanges, where those of a turn without a score count as the others of that turn do; when a
    turn has none at all, nothing says it. So a scorer that fails raises none of the three that
    the best tester is chosen by: it can lower them, or leave them out. Then follows how varied
    the probes are.
    """
    paths = [list(tree.nodes()) for tree in trees]
    dialogues = [_scores_of(path) for path in paths]
    found = {"failed": fmean(not own or None in own for own in dialogues)} if paths else {}
    highest = [max(known) for own in dialogues if (known := [s for s in own if s is not None])]
    if highest:
        last = success_by_turn(dialogues, threshold)[-1]
        found |= {"success": last.low, "success_at_most": last.high, "score": fmean(highest)}
        reward = _mean_reward(paths)
        found |= {} if reward is None else {"reward": reward}
    found |= diversity([node.probe for path in paths for node in path])
    return found


def _scores_of(path: Sequence[RolloutNode]) -> list[float | None]:
    return [node.score.value if node.valid else None for node in path]


def _mean_reward(paths: Sequence[Sequence[RolloutNode]]) -> float | None:
    total = 0.0
    for turn in zip_longest(*paths):
        nodes = [node for node in turn if node is not None]
        known = [node.reward for node in nodes if node.valid]
        if not known:
            return None
        total += fmean(known) * len(nodes)
    return total / sum(map(len, paths))


def dialogue_sample(tree: RolloutTree, step: int) -> dict[str, Any]:
    """The first dialogue of a tree as plain values, to be kept as a sample."""
    path = next(iter(tree.paths()), [])
    return {
        "step": step,
        "prompt": tree.context.prompt,
        "category": tree.context.category,
        "seed": tree.seed,
        "exchanges": [
            {
                "probe": node.probe,
                "response": node.response,
                "score": node.score.value if node.valid else None,
                "reward": node.reward if node.valid else None,
                "failure": node.failure,
            }
            for node in path
        ],
    }
