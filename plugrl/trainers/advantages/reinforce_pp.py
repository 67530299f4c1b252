"""REINFORCE++: returns of tokens, normalised over the whole batch.

Source: arXiv 2501.03262. With r_t the reward of each trained token, that of the whole at the last
one and penalties included, the return is G_t = r_t + gamma G_(t+1) over the trained tokens of a
row, and A_t = (G_t - mean(G)) / (std(G) + epsilon) with mean and population deviation over all
trained tokens of valid rows. ``baseline: group`` first takes the mean reward of the prompt's group
from the reward of the whole (REINFORCE++-baseline there). Equal returns have advantage 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import discounted_sum, group_statistics, whiten
from plugrl.core.text.learn.advantages import add_at_the_end, rewards_of_tokens

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@dataclass
class ReinforcePpConfig:
    """Options of the advantage ``reinforce_pp``."""

    gamma: float = described(1.0, "discount of a token's return", at_least=0, at_most=1)
    baseline: Literal["none", "group"] = described(
        "none", "what is taken from rewards first: nothing, or the mean of the prompt's group"
    )
    normalize: bool = described(True, "subtract the mean and divide by the deviation of the batch")
    epsilon: float = described(1e-8, "added to the deviation", at_least=0, at_most=1)


@traits(Config=ReinforcePpConfig, reads=())
def reinforce_pp(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch,
    config: Any,
) -> torch.Tensor:
    """Normalised returns of the trained tokens, [R, T]; invalid rows get 0 and count nowhere."""
    mask = (batch.values["loss_mask"] != 0) & valid[:, None]
    earned = batch
    if config.baseline == "group":
        baseline = group_statistics(rewards, group, run, valid).mean
        earned = batch.copy()
        add_at_the_end(earned, -baseline.float())
    returns = discounted_sum(rewards_of_tokens(earned), config.gamma, valid=mask)
    return whiten(returns, mask, config.epsilon) if config.normalize else returns
