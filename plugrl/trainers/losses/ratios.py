"""Ratios of probabilities to those under the sampler: what policy-gradient losses share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.kl import k3
from plugrl.core.text.learn.losses import masked_sum


@dataclass
class ClipRange:
    """Where a ratio is clipped."""

    clip_ratio_low: float = described(0.2, "the ratio is clipped below at 1 - this")
    clip_ratio_high: float = described(0.2, "the ratio is clipped above at 1 + this")

    def __post_init__(self) -> None:
        if not 0 <= self.clip_ratio_low <= 1:
            raise ConfigError("clip_ratio_low must be between 0 and 1")
        if self.clip_ratio_high < 0:
            raise ConfigError("clip_ratio_high must not be negative")


def log_ratio(logp: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The logarithm of each trained token's ratio, [B, T]; 0 elsewhere."""
    return torch.where(mask != 0, logp - old, 0.0)


def kl_to_sampler(
    log_ratios: torch.Tensor, mask: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The metric of that name: the divergence from the sampler, as (sum, count)."""
    return {"kl_to_sampler": masked_sum(k3(log_ratios.detach()), mask)}
