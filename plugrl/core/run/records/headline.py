"""``Headline``: the one curve that says how a run went."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
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


def headline_metric(status: Mapping[str, Any], names: Container[str]) -> str | None:
    """The metric by which a run is judged; None: it has none that says how it went.

    Args:
        status: of the run; its ``headline`` is the score that the run reported last.
        names: the metrics that there are.
    """
    reported = (status.get("headline") or {}).get("metric")
    return next((name for name in (reported, *_FALLBACKS) if name in names), None)


def headline_of(status: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Headline | None:
    """The headline of a run; None: it has no metric that says how it went.

    Args:
        status: of the run; see :func:`headline_metric`.
        metrics: the lines of ``metrics.jsonl``.
    """
    names = {name for line in metrics for name, value in line.items() if value is not None}
    metric = headline_metric(status, names)
    if metric is None:
        return None
    points = [
        (int(line["step"]), float(line[metric])) for line in metrics if line.get(metric) is not None
    ]
    return Headline(metric, lower_is_better(status, metric), points)


def lower_is_better(status: Mapping[str, Any], metric: str) -> bool:
    """Whether the best value of the headline ``metric`` is the smallest."""
    reported = status.get("headline") or {}
    minimised = metric == reported.get("metric") and reported.get("mode") == "min"
    return minimised or metric == "train/loss"
