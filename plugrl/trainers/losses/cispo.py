"""CISPO: clipped importance weights in place of clipped updates.

Source: MiniMax-M1 (arXiv 2506.13585), equations 4 and 5, without a lower bound, as there. With
r = exp(logp - old_log_probs): loss = -sg[min(r, 1 + high)] A logp. Every token keeps a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import k3
from plugrl.core.text.learn.losses import masked_sum

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class CispoConfig:
    """Options of the loss ``cispo``."""

    clip_ratio_high: float = described(
        4.0, "the weight of a token is at most 1 + this", at_least=0, at_most=1e6
    )


@traits(Config=CispoConfig, reads=("advantages", "old_log_probs"), skips_zero_advantage=True)
def cispo(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """REINFORCE with clipped importance weights per token, [B, T].

    Raises:
        ContractError: the batch has no advantages or no old log-probabilities.
    """
    advantages, old_logp = batch.values["advantages"], batch.values["old_log_probs"]
    mask = batch.values["loss_mask"]
    # Zero times NaN is NaN, also in a gradient, so that what is masked is left out of products.
    advantages = torch.where(mask != 0, advantages, 0.0)
    logratio = torch.where(mask != 0, logp - old_logp, 0.0).detach()
    ratio, cap = logratio.exp(), 1 + config.clip_ratio_high
    metrics = {
        "clip_fraction": masked_sum((ratio > cap).float(), mask),
        "kl_to_sampler": masked_sum(k3(logratio), mask),
    }
    return -ratio.clamp_max(cap) * advantages * logp, metrics
