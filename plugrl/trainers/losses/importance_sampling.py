"""The policy gradient with importance sampling and no clip.

Source: the surrogate of conservative policy iteration, L^CPI in PPO (arXiv 1707.06347), equation 6.
With r = exp(logp - old_log_probs): loss = -A r. Its gradient at r = 1 is that of REINFORCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import NoConfig
from plugrl.core.text.losses import masked_sum, required

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


def importance_sampling(
    logp: torch.Tensor, batch: Batch, config: Any
) -> tuple[torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Importance-weighted policy-gradient loss per token, [B, T].

    Raises:
        ContractError: the batch has no advantages or no old log-probabilities.
    """
    advantages, old = required(batch, "importance_sampling", "advantages", "old_log_probs")
    mask = batch.values["loss_mask"]
    log_ratio = torch.where(mask != 0, logp - old, 0.0)
    ratio = log_ratio.exp()
    metrics = {
        "ratio": masked_sum(ratio, mask),
        "kl_to_sampler": masked_sum(ratio - 1 - log_ratio, mask),
    }
    return -advantages * ratio, metrics


importance_sampling.Config = NoConfig  # type: ignore[attr-defined]
importance_sampling.skips_zero_advantage = True  # type: ignore[attr-defined]
