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

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.group_baselines import Grouping

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
    grouping = Grouping.of(rewards, group, run, valid)
    advantages = grouping.relative(config.epsilon if config.normalize else None)
    return grouping.spread(advantages, len(rewards))


grpo.Config = GrpoConfig  # type: ignore[attr-defined]
grpo.reads = ()  # type: ignore[attr-defined]
grpo.compares_attempts = True  # type: ignore[attr-defined]
