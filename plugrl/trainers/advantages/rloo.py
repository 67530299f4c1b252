"""RLOO: a reward less the mean of the other runs of its prompt.

Source: "Back to Basics" (arXiv 2402.14740), equation 8: A_i = r_i - sum over j != i of
r_j / (n - 1), which is n / (n - 1) times the reward less the group's mean. With r the mean reward
of each run; every trajectory of a run gets the run's advantage. A group of one run has advantage 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import NoConfig, traits
from plugrl.core.estimators import group_statistics

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@traits(Config=NoConfig, reads=(), compares_attempts=True)
def rloo(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch | None,
    config: Any,
) -> torch.Tensor:
    """Leave-one-out advantages, [R]; invalid trajectories get 0 and count nowhere."""
    r, mean, _, n = group_statistics(rewards, group, run, valid)
    return ((r - mean) * n / (n - 1).clamp_min(1)).float()
