"""Dialogues about prompts that nothing is trained on: one way through each, always the same."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.text.red_team.metrics import diversity

if TYPE_CHECKING:
    from plugrl.core.text.red_team.environment import Environment
    from plugrl.core.text.red_team.tree import RolloutTree

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
    found = dialogue_metrics(trees, environment.threshold)
    return {f"{prefix}/{name}": value for name, value in found.items()}, trees


def dialogue_metrics(trees: Sequence[RolloutTree], threshold: float = 0.5) -> dict[str, float]:
    """What came of dialogues, each a tree of width 1, those that nobody can judge apart.

    ``success`` is the share of dialogues with an exchange of at least ``threshold``; one that has
    none, and an exchange without a score, is ``failed``. ``score`` is the mean of their highest
    scores, ``reward`` that over exchanges; then how varied the probes are.
    """
    paths = [list(tree.nodes()) for tree in trees]
    succeeded = [any(n.valid and n.score.value >= threshold for n in path) for path in paths]
    judged = [
        won or (bool(path) and all(n.valid for n in path))
        for won, path in zip(succeeded, paths, strict=True)
    ]
    found = {"failed": 1.0 - fmean(judged)} if paths else {}
    kept = [path for path, known in zip(paths, judged, strict=True) if known]
    if kept:
        valid = [[n for n in path if n.valid] for path in kept]
        found["success"] = sum(succeeded) / len(kept)
        found["score"] = fmean(max(n.score.value for n in path) for path in valid)
        found["reward"] = fmean(n.reward for path in valid for n in path)
    found |= diversity([node.probe for path in paths for node in path])
    return found


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
