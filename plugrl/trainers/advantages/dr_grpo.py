"""Dr. GRPO's advantage: GRPO's without the division by the group's deviation.

Source: arXiv 2503.20783, section 3.2: A = r - mean(r), so that prompts that are nearly always or
nearly never solved weigh no more than others. With r the mean reward of each run of a group; every
trajectory of a run gets the run's advantage. A group of one run has advantage 0. To be without the
length bias too, take ``aggregation: seq-mean-token-sum-norm``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import NoConfig, traits
from plugrl.core.estimators import group_statistics

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@traits(Config=NoConfig, reads=(), compares_attempts=True)
def dr_grpo(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch | None,
    config: Any,
) -> torch.Tensor:
    """Rewards less their group's mean, [R]; invalid trajectories get 0 and count nowhere."""
    r, mean, _, _ = group_statistics(rewards, group, run, valid)
    return (r - mean).float()
