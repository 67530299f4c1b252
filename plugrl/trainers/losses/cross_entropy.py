"""Cross-entropy: the negative log-probability of the tokens of a demonstration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import NoConfig
from plugrl.core.text.learn.losses import masked_sum

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossAnswer


def cross_entropy(logp: torch.Tensor, batch: Batch, config: Any) -> LossAnswer:
    """Cross-entropy per token, [B, T]: -log p(token)."""
    return -logp, {"log_prob": masked_sum(logp, batch.values["loss_mask"])}


cross_entropy.Config = NoConfig  # type: ignore[attr-defined]
cross_entropy.reads = ()  # type: ignore[attr-defined]
