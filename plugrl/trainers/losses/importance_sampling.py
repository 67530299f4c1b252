"""The policy gradient with importance sampling and no clip.

Source: the surrogate of conservative policy iteration, L^CPI in PPO (arXiv 1707.06347), equation 6.
With r = exp(logp - old_log_probs): loss = -A r. Its gradient at r = 1 is that of REINFORCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import NoConfig
from plugrl.core.text.learn.losses import masked_sum, required
from plugrl.trainers.losses.ratios import kl_to_sampler, log_ratio

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossAnswer


def importance_sampling(logp: torch.Tensor, batch: Batch, config: Any) -> LossAnswer:
    """Importance-weighted policy-gradient loss per token, [B, T].

    Raises:
        ContractError: the batch has no advantages or no old log-probabilities.
    """
    advantages, old = required(batch, "importance_sampling", "advantages", "old_log_probs")
    mask = batch.values["loss_mask"]
    log_ratios = log_ratio(logp, old, mask)
    ratio = log_ratios.exp()
    metrics = {
        "ratio": masked_sum(ratio, mask),
        **kl_to_sampler(log_ratios, mask),
    }
    return -advantages * ratio, metrics


importance_sampling.Config = NoConfig  # type: ignore[attr-defined]
importance_sampling.reads = ("advantages", "old_log_probs")  # type: ignore[attr-defined]
importance_sampling.skips_zero_advantage = True  # type: ignore[attr-defined]
