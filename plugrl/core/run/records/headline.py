"""``Headline``: the one curve that says how a run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: What a run is about that reported no held-out score, in this order.
_FALLBACKS = (
    "validation/mean_episode_return",
    "validation/reward",
    "rollout/mean_episode_return",
    "rollout/reward",
    "train/loss",
)


@dataclass(frozen=True)
class Headline:
    """The metric by which a run is judged, and its values.

    Attributes:
        metric: its name.
        lower_is_better: whether the best value is the smallest.
        points: (step, value) of every line of metrics that has it, in order; at least one.
    """

    metric: str
    lower_is_better: bool
    points: Sequence[tuple[int, float]]

    @property
    def first(self) -> float:
        """The value that the run began with."""
        return self.points[0][1]

    @property
    def last(self) -> float:
        """The value that it ended with."""
        return self.points[-1][1]

    @property
    def best(self) -> float:
        """The best value."""
        values = [value for _, value in self.points]
        return min(values) if self.lower_is_better else max(values)


def headline_of(status: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Headline | None:
    """The headline of a run; None: it has no metric that says how it went.

    Args:
        status: of the run; its ``headline`` is the score that the run reported last.
        metrics: the lines of ``metrics.jsonl``.
    """
    reported = status.get("headline") or {}
    for metric in (reported.get("metric"), *_FALLBACKS):
        points = [
            (int(line["step"]), float(line[metric]))
            for line in metrics
            if metric is not None and line.get(metric) is not None
        ]
        if points:
            lower = metric == reported.get("metric") and reported.get("mode") == "min"
            return Headline(str(metric), lower or metric == "train/loss", points)
    return None
