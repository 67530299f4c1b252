"""How far a tester got, and how varied it is, so that a collapse is seen."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.tree import RolloutTree

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
