"""GRPO's advantage: a reward relative to its group.

Source: DeepSeekMath (arXiv 2402.03300), equation for outcome supervision. With r the mean reward
of each run of a group, A = (r - mean(r)) / (std(r) + epsilon), std being the sample standard
deviation (one degree of freedom), as in TRL. Every trajectory of a run gets the run's advantage.
A group of one run, or of equal rewards, has advantage 0: it holds nothing to compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.config.schema import described
from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@dataclass
class GrpoConfig:
    """Options of the advantage ``grpo``."""

    normalize: bool = described(True, "divide by the group's standard deviation")
    epsilon: float = described(1e-6, "added to the standard deviation")

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ConfigError("epsilon must not be negative")


def grpo(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch | None,
    config: Any,
) -> torch.Tensor:
    """Group-relative advantages, [R]; invalid trajectories get 0 and count nowhere."""
    advantages = torch.zeros_like(rewards, dtype=torch.float32)
    rows = valid.nonzero().flatten()
    if not len(rows):
        return advantages
    pairs, run_of_row = torch.stack([group[rows], run[rows]], 1).unique(dim=0, return_inverse=True)
    means = _mean_by(rewards[rows].double(), run_of_row, len(pairs))
    groups, group_of_run = pairs[:, 0].unique(return_inverse=True)
    baseline = _mean_by(means, group_of_run, len(groups))
    centred = means - baseline[group_of_run]
    if config.normalize:
        runs = torch.bincount(group_of_run)
        variance = _mean_by(centred.square(), group_of_run, len(groups)) * runs
        deviation = (variance / (runs - 1).clamp_min(1)).sqrt()
        # Rewards are float32, so a relative deviation below 1e-9 is rounding: they are equal.
        scale = torch.where(
            deviation > 1e-9 * baseline.abs(), deviation + config.epsilon, torch.inf
        )
        centred = centred / scale[group_of_run]
    advantages[rows] = centred[run_of_row].float()
    return advantages


def _mean_by(values: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Mean of ``values`` for each number in ``index``: [size]."""
    totals = torch.zeros(size, dtype=values.dtype).index_add_(0, index, values)
    return totals / torch.bincount(index, minlength=size)


grpo.Config = GrpoConfig  # type: ignore[attr-defined]
