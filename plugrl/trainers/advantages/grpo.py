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
    for members in _members(group, valid):
        runs, index = run[members].unique(return_inverse=True)
        if len(runs) < 2:
            continue
        sums = torch.zeros(len(runs), dtype=torch.float64)
        sums.index_add_(0, index, rewards[members].double())
        means = sums / torch.bincount(index)
        centred = means - means.mean()
        if config.normalize:
            centred = centred / (means.std(correction=1) + config.epsilon)
        advantages[members] = centred[index].float()
    return advantages


def _members(group: torch.Tensor, valid: torch.Tensor) -> list[torch.Tensor]:
    rows = valid.nonzero().flatten()
    order = group[rows].argsort(stable=True)
    _, sizes = group[rows][order].unique_consecutive(return_counts=True)
    return list(rows[order].split(sizes.tolist()))


grpo.Config = GrpoConfig  # type: ignore[attr-defined]
