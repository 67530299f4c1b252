"""The clipped policy-gradient loss.

Source: PPO (arXiv 1707.06347), equation 7, with separate lower and upper ranges (DAPO, arXiv
2503.14476, equation 10) and the dual clip for negative advantages (arXiv 1912.09729, equation 5).
With r = exp(logp - old_log_probs): loss = max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0
at most -A * dual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.losses import masked_sum, required
from plugrl.trainers.losses.ratios import ClipRange, kl_to_sampler, log_ratio

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossAnswer


@dataclass
class ClippedConfig(ClipRange):
    """Options of the loss ``clipped``."""

    clip_ratio_dual: float | None = described(
        None, "bound of the ratio's effect at negative advantages, above 1; null: none"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_ratio_dual is not None and self.clip_ratio_dual <= 1:
            raise ConfigError("clip_ratio_dual must be above 1")


def clipped(logp: torch.Tensor, batch: Batch, config: Any) -> LossAnswer:
    """Clipped policy-gradient loss per token, [B, T].

    Raises:
        ContractError: the batch has no advantages or no old log-probabilities.
    """
    advantages, old = required(batch, "clipped", "advantages", "old_log_probs")
    mask = batch.values["loss_mask"]
    log_ratios = log_ratio(logp, old, mask)
    ratio = log_ratios.exp()
    bounded = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    plain, limited = -advantages * ratio, -advantages * bounded
    loss = torch.maximum(plain, limited)
    if config.clip_ratio_dual is not None:
        ceiling = -advantages * config.clip_ratio_dual
        loss = torch.where(advantages < 0, torch.minimum(loss, ceiling), loss)
    metrics = {
        "clip_fraction": masked_sum((limited > plain).float(), mask),
        **kl_to_sampler(log_ratios, mask),
    }
    return loss, metrics


clipped.Config = ClippedConfig  # type: ignore[attr-defined]
clipped.reads = ("advantages", "old_log_probs")  # type: ignore[attr-defined]
clipped.skips_zero_advantage = True  # type: ignore[attr-defined]
