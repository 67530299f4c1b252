"""Means over trajectories and tokens, and what a set of rollouts says in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plugrl.core.text.trajectory import Trajectory

#: Names of the metrics that :func:`rollout_metrics` gives whatever the evaluators say.
OF_ATTEMPTS = (
    *("reward", "reward_min", "reward_max", "token_reward"),
    *("invalid", "response_length", "truncated"),
)


def mean_metrics(metrics: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The mean of each (sum, count) pair that has a count."""
    return {name: total / count for name, (total, count) in metrics.items() if count}


class Means:
    """Adds up (sum, count) pairs by name."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, metrics: Mapping[str, tuple[float, float]]) -> None:
        """Add sums and counts."""
        for name, (total, count) in metrics.items():
            held_total, held_count = self._totals.get(name, (0.0, 0.0))
            self._totals[name] = (held_total + total, held_count + count)

    def sums(self) -> dict[str, tuple[float, float]]:
        """Sum and count of each name."""
        return dict(self._totals)

    def means(self, prefix: str = "") -> dict[str, float]:
        """Mean of each name that has a count."""
        return {f"{prefix}{name}": mean for name, mean in mean_metrics(self._totals).items()}


def rollout_metrics(
    trajectories: Sequence[Trajectory], prefix: str = "rollout"
) -> dict[str, float]:
    """Rewards, lengths, invalid share and the evaluators' own metrics of some rollouts.

    A metric is the mean over the valid trajectories that have it; ``reward`` is that over attempts,
    however many trajectories each has.
    """
    if not trajectories:
        return {}
    valid = [t for t in trajectories if t.valid]
    totals = Means()
    for t in valid:
        totals.add({name: (value, 1) for name, value in t.metrics.items()})
    metrics = {
        "invalid": 1 - len(valid) / len(trajectories),
        "response_length": sum(sum(t.loss_mask) for t in trajectories) / len(trajectories),
        "truncated": sum(t.finish_reason == "length" for t in trajectories) / len(trajectories),
    }
    if valid:
        rewards = [t.reward for t in valid]
        if any(t.token_rewards is not None for t in valid):
            metrics["token_reward"] = sum(t.total_reward for t in valid) / len(valid) - (
                sum(rewards) / len(rewards)
            )
        metrics |= {
            "reward": _mean_by_attempt(valid),
            "reward_min": min(rewards),
            "reward_max": max(rewards),
        }
    # A metric of an evaluator cannot take the name of one of these.
    own = {f"evaluator/{k}" if k in metrics else k: v for k, v in totals.means().items()}
    return {f"{prefix}/{name}": value for name, value in (metrics | own).items()}


def _mean_by_attempt(trajectories: Sequence[Trajectory]) -> float:
    attempts: dict[tuple[str, int], list[float]] = {}
    for t in trajectories:
        attempts.setdefault((t.group_id, t.run_id), []).append(t.reward)
    return sum(sum(own) / len(own) for own in attempts.values()) / len(attempts)


def rollout_metrics_by_model(
    trajectories: Sequence[Trajectory], prefix: str = "rollout"
) -> dict[str, float]:
    """:func:`rollout_metrics` of all, and ``<prefix>/<model>/...`` of each of several models."""
    metrics = rollout_metrics(trajectories, prefix)
    models = sorted({t.model for t in trajectories})
    if len(models) > 1:
        for model in models:
            own = [t for t in trajectories if t.model == model]
            metrics |= rollout_metrics(own, f"{prefix}/{model}")
    return metrics
