"""The reverse KL divergence from a teacher, on tokens that the student sampled.

Source: on-policy distillation, MiniLLM (arXiv 2306.08543) and GKD (arXiv 2306.13649); the estimate
by sampled tokens. With k = coefficient (logp - teacher), KL(student || teacher) is the mean of k,
and its gradient is E[k grad logp]: differentiating k itself would leave the teacher out. So
loss = r sg[k] with r = exp(logp - old_log_probs), whose value is the importance-weighted estimate.
With ``clip_ratio`` c: loss = max(r sg[k], clip(r, 1 - c, 1 + c) sg[k]), as in PPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import clipped_surrogate, k3
from plugrl.core.text.learn.losses import masked_sum

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class ReverseKlConfig:
    """Options of the loss ``reverse_kl``."""

    coefficient: float = described(1.0, "factor of the divergence", above=0, at_most=1000)
    clip_ratio: float | None = described(
        None,
        "clip the ratio to the sampler at 1 - this and 1 + this; null: no clip",
        above=0,
        at_most=1e6,
    )


def fill_probe(probe: Batch, logp: torch.Tensor) -> None:
    """Give a probe teachers that find some tokens likelier and others less likely."""
    mask = probe.values["loss_mask"]
    generator = torch.Generator().manual_seed(1)
    gaps = 3 * torch.rand(mask.shape, generator=generator) - 1.5
    probe.values["teacher_log_probs"] = (logp.detach() - gaps) * mask


@traits(Config=ReverseKlConfig, reads=("teacher_log_probs", "old_log_probs"), fill_probe=fill_probe)
def reverse_kl(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The weighted divergence per token, [B, T]; advantages play no part.

    Raises:
        ContractError: the batch has no log-probabilities of a teacher or no old ones.
    """
    teacher_logp, old_logp = batch.values["teacher_log_probs"], batch.values["old_log_probs"]
    mask = batch.values["loss_mask"]
    logratio = torch.where(mask != 0, logp - old_logp, 0.0)
    ratio = logratio.exp()
    k = config.coefficient * torch.where(mask != 0, logp.detach() - teacher_logp, 0.0)
    loss = ratio * k
    metrics = {"kl_to_sampler": masked_sum(k3(logratio.detach()), mask)}
    if config.clip_ratio is not None:
        # k is minimised as -A is.
        loss, is_clipped = clipped_surrogate(ratio, -k, config.clip_ratio, config.clip_ratio)
        metrics["clip_fraction"] = masked_sum(is_clipped.float(), mask)
    return loss, metrics
