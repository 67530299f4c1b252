"""Weights that correct for a sampler that is not quite the policy that is trained.

Engines round differently, and weights may have moved on since a token was drawn. With p the
probability of a token under the weights as they are before the update and q that under the
sampler, both at the temperature of the sampling and before top-k or top-p take tokens away, the
ratio p / q is 1 where the weights are equal, whatever those settings are. Truncated importance
sampling (Yao et al., "Your efficient RL framework secretly brings you off-policy RL training",
2025) bounds it; masking leaves out what is far from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import LARGEST_LOGRATIO, k3
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import SAMPLER_WEIGHTS

#: Key of the log-probabilities under the sampler, once ``old_log_probs`` are those of the trainer.
SAMPLER_LOG_PROBS = "sampler_log_probs"


@dataclass
class SamplerCorrectionConfig:
    """How a policy loss is weighted for the difference between sampler and trainer."""

    level: Literal["none", "token", "sequence"] = described(
        "none", "one ratio for each token, the product of them for each sequence, or no correction"
    )
    mode: Literal["truncate", "mask"] = described(
        "truncate", "ratios outside the bounds: brought to the bound, or left out of the loss"
    )
    cap: float = described(2.0, "upper bound of the ratio", at_least=1, at_most=1e6)
    floor: float = described(0.0, "lower bound of the ratio", at_least=0, at_most=1)


def correct_for_sampler(batch: Batch, old_log_probs: torch.Tensor, config: Any) -> dict[str, float]:
    """Make ``old_log_probs`` those of the trainer and add the weights of the loss.

    Args:
        batch: with ``old_log_probs`` of the sampler, [B, T]; they move to ``sampler_log_probs``.
        old_log_probs: of the weights before the update, [B, T].
        config: a :class:`SamplerCorrectionConfig` whose level is not ``none``.

    Returns:
        ``sampler_ratio`` with its extremes over trained tokens or sequences, ``sampler_outside``
        (the share outside the bounds) and ``sampler_kl``, the divergence of the policy from the
        sampler by k3.
    """
    mask = batch.values["loss_mask"] != 0
    sampler = batch.values["old_log_probs"]
    log_ratio = torch.where(mask, old_log_probs - sampler, 0.0)
    divergence = k3(log_ratio)[mask]
    counted = mask
    if config.level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True)
        counted = mask.any(1, keepdim=True)
    ratio = log_ratio.clamp(-LARGEST_LOGRATIO, LARGEST_LOGRATIO).exp()
    outside = (ratio > config.cap) | (ratio < config.floor)
    if config.mode == "truncate":
        weights = ratio.clamp(config.floor, config.cap)
    else:
        weights = ratio.masked_fill(outside, 0.0)
    batch.values[SAMPLER_LOG_PROBS] = sampler
    batch.values["old_log_probs"] = old_log_probs
    batch.values[SAMPLER_WEIGHTS] = weights.expand(mask.shape) * mask
    if not bool(mask.any()):
        return {}
    of_each = ratio[counted]
    return {
        "sampler_ratio": float(of_each.mean()),
        "sampler_ratio_min": float(of_each.min()),
        "sampler_ratio_max": float(of_each.max()),
        "sampler_outside": float(outside[counted].float().mean()),
        "sampler_kl": float(divergence.mean()),
    }
