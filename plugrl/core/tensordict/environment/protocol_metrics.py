"""How episodes of a protocol came out, over all items and by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plugrl.core.protocol.protocol import Tally, Verdict

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled


class ProtocolMetrics:
    """Collects the verdicts of episodes that ended.

    Args:
        data: what they were about.
    """

    def __init__(self, data: Labelled) -> None:
        self._data = data
        self._ended: list[np.ndarray] = []

    def add(
        self, numbers: np.ndarray, items: np.ndarray, verdicts: np.ndarray, rounds: np.ndarray
    ) -> None:
        """Take in n episodes: their numbers, items, verdicts and rounds, ``[n]`` each."""
        self._ended.append(np.stack([numbers, items, verdicts, rounds]))

    def take(self, episodes: int | None = None) -> dict[str, float]:
        """Means over the episodes since the last call, or those with a number below ``episodes``.

        Nothing if there are none.
        """
        if not self._ended:
            return {}
        numbers, items, verdicts, rounds = np.concatenate(self._ended, 1)
        self._ended = []
        counts = np.ones(len(items), bool) if episodes is None else numbers < episodes
        items, verdicts, rounds = items[counts], verdicts[counts], rounds[counts]
        if not len(items):
            return {}
        labels = self._data.labels[items]
        tally = Tally.of(verdicts, labels)
        metrics = {
            "accuracy": tally.accuracy,
            "undecided": float((verdicts == Verdict.UNDECIDED).mean()),
            "rounds": float(rounds.mean()),
        }
        if tally.right + tally.wrong:
            metrics["decided_accuracy"] = tally.decided_accuracy
        for label in (0, 1):
            there = labels == label
            if there.any():
                metrics[f"accuracy/label_{label}"] = float((verdicts[there] == label).mean())
        if self._data.groups is not None:
            groups = self._data.groups[items]
            for place, name in enumerate(self._data.group_names):
                there = groups == place
                if there.any():
                    right = verdicts[there] == labels[there]
                    metrics[f"accuracy/{name}"] = float(right.mean())
        return metrics
