"""Metrics of rollout trees: how far a tester got, and how varied it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plugrl.core.text.dialogue.evaluation.success import success_by_turn

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree

_GRAM = 3


def similarities(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """How alike texts are, [N, N]: the Jaccard index of their runs of three characters.

    1.0 for equal texts, 0.0 where no run is shared.
    """
    numbers: dict[str, int] = {}
    grams = [{numbers.setdefault(gram, len(numbers)) for gram in _grams(text)} for text in texts]
    has = np.zeros((len(texts), max(len(numbers), 1)))
    for row, own in enumerate(grams):
        has[row, list(own)] = 1.0
    shared = has @ has.T
    sizes = has.sum(1)
    alike: npt.NDArray[np.float64] = shared / (sizes[:, None] + sizes[None, :] - shared)
    return alike


def _grams(text: str) -> set[str]:
    padded = f"\x02{text}\x03"
    return {padded[i : i + _GRAM] for i in range(max(len(padded) - _GRAM + 1, 1))}


def novelty(texts: Sequence[str]) -> list[float]:
    """1 minus the mean similarity of each text to the others; 0.0 for a text alone."""
    if len(texts) < 2:
        return [0.0] * len(texts)
    alike = similarities(texts)
    means = (alike.sum(1) - np.diag(alike)) / (len(texts) - 1)
    return [float(value) for value in 1.0 - means]


def distinct(texts: Sequence[str], n: int) -> float:
    """Distinct-n (Li et al., arXiv 1510.03055): the share of runs of n words that are different.

    Texts without a space are read character by character.
    """
    runs = [run for text in texts for run in _runs(text, n)]
    return len(set(runs)) / len(runs) if runs else 0.0


def _runs(text: str, n: int) -> list[tuple[str, ...]]:
    words = text.split() if " " in text.strip() else list(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def diversity(texts: Sequence[str]) -> dict[str, float]:
    """How varied probes are: the share that is unique, distinct-1, distinct-2, self-similarity."""
    if not texts:
        return {}
    return {
        "unique": len(set(texts)) / len(texts),
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        "self_similarity": 1.0 - fmean(novelty(texts)) if len(texts) > 1 else 1.0,
    }


def tree_metrics(trees: Sequence[RolloutTree], threshold: float = 0.5) -> dict[str, float]:
    """Means over the exchanges of ``trees``, failed ones counted apart, and their diversity."""
    nodes = [node for tree in trees for node in tree.nodes()]
    kept = [node for node in nodes if node.valid]
    metrics = {"rollout/exchanges": float(len(nodes))}
    if nodes:
        metrics["rollout/failed"] = (len(nodes) - len(kept)) / len(nodes)
    if not kept:
        return metrics
    metrics["rollout/reward"] = fmean(node.reward for node in kept)
    metrics["rollout/score"] = fmean(node.score.value for node in kept)
    metrics["rollout/success"] = fmean(node.score.value >= threshold for node in kept)
    metrics["rollout/probe_tokens"] = fmean(len(node.probe_tokens) for node in kept)
    for name in kept[0].rewards:
        metrics[f"rollout/reward/{name}"] = fmean(node.rewards.get(name, 0.0) for node in kept)
    for name in sorted({name for node in kept for name in node.score.categories}):
        values = [n.score.categories[name] for n in kept if name in n.score.categories]
        metrics[f"rollout/score/{name}"] = fmean(values)
    probes = [node.probe for node in nodes]
    return metrics | {f"diversity/{name}": value for name, value in diversity(probes).items()}


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
    dialogues = [scores_of(path) for path in paths]
    found = {"failed": fmean(not own or None in own for own in dialogues)} if paths else {}
    highest = [max(known) for own in dialogues if (known := [s for s in own if s is not None])]
    if highest:
        last = success_by_turn(dialogues, threshold)[-1]
        found |= {"success": last.low, "success_at_most": last.high, "score": fmean(highest)}
        reward = _mean_reward(paths)
        found |= {} if reward is None else {"reward": reward}
    found |= diversity([node.probe for path in paths for node in path])
    return found


def scores_of(path: Sequence[RolloutNode]) -> list[float | None]:
    """The scores of a dialogue's exchanges; None: there is none."""
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
