"""Functions on lists of trajectories, for trainers that prepare trajectories themselves."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from plugrl.core.config.check import configure
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.learn import advantages
from plugrl.core.text.rollout.metrics import rollout_metrics
from plugrl.core.text.trajectory import Trajectory


def log_rollout_metrics(
    trajectories: Sequence[Trajectory], metrics: dict[str, Any]
) -> dict[str, Any]:
    """Add rewards, lengths, truncation and the evaluators' metrics of ``trajectories``.

    Returns:
        ``metrics``, which was changed.
    """
    metrics.update(rollout_metrics(trajectories))
    return metrics


def log_grpo_metrics(trajectories: Sequence[Trajectory], metrics: dict[str, Any]) -> dict[str, Any]:
    """Add what groups and advantages look like: their number, spread and share without a signal.

    Returns:
        ``metrics``, which was changed.
    """
    groups: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.valid:
            groups.setdefault(trajectory.group_id, []).append(trajectory.reward)
    given = [t.advantage for t in trajectories if t.valid and t.advantage is not None]
    metrics["grpo/groups"] = float(len(groups))
    if groups:
        rewards = groups.values()
        spreads = [statistics.stdev(group) if len(group) > 1 else 0.0 for group in rewards]
        metrics["grpo/group_reward"] = statistics.fmean(map(statistics.fmean, rewards))
        metrics["grpo/group_std"] = statistics.fmean(spreads)
        metrics["grpo/equal_groups"] = sum(len(set(g)) == 1 for g in rewards) / len(groups)
    if given:
        metrics["grpo/advantage_mean"] = statistics.fmean(given)
        metrics["grpo/advantage_abs"] = statistics.fmean(map(abs, given))
    return metrics


def compute_grpo_advantage_for_trajectories(
    trajectories: Sequence[Trajectory],
    logger: logging.Logger | None = None,
    use_run_ids: bool = True,
    config: Mapping[str, Any] | None = None,
) -> list[Trajectory]:
    """Give each trajectory the advantage that ``grpo`` gives it in a batch.

    Groups are those of equal ``group_id``. Invalid trajectories get 0 and count in no group.

    Args:
        trajectories: of all groups of a step; they are changed.
        logger: where the number of groups is logged.
        use_run_ids: trajectories of one run, such as turns of one attempt, count once, with
            their mean reward; else each counts for itself.
        config: options of the advantage ``grpo``.
    """
    function = default_registry().get("advantage", "plugrl/grpo")
    section = configure(function, dict(config or {}))
    counted = list(trajectories)
    if not use_run_ids:
        counted = [replace(t, run_id=number) for number, t in enumerate(counted)]
    for trajectory, source in zip(
        trajectories, advantages.for_trajectories(function, counted, section), strict=True
    ):
        trajectory.advantage = source.advantage
    if logger is not None:
        logger.info("advantages of %d groups", len({t.group_id for t in trajectories}))
    return list(trajectories)
