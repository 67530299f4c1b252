"""Group Sequence Policy Optimization: one ratio for a whole answer.

Source: GSPO (arXiv 2507.18071). With |y| the number of trained tokens of a row, equation 7:
s = exp(sum_t (logp_t - old_t) / |y|), the length-normalised ratio, and equation 5:
loss = max(-A s, -A clip(s, 1 - low, 1 + high)). It is written in the form of equations 13 and 14
(GSPO-token), s_t = sg[s] p_t / sg[p_t], whose gradient is the same when the tokens of a row share
an advantage, and which allows each token its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import clipped_surrogate, k3
from plugrl.core.text.learn.losses import masked_sum
from plugrl.trainers.losses.clip_range import ClipRange

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class GspoConfig(ClipRange):
    """Options of the loss ``gspo``; ratios of sequences need far narrower ranges than of tokens."""

    clip_ratio_low: float = described(
        3e-4, "the sequence's ratio is clipped below at 1 - this", at_least=0, at_most=1
    )
    clip_ratio_high: float = described(
        4e-4, "the sequence's ratio is clipped above at 1 + this", at_least=0, at_most=1e6
    )


def fill_probe(probe: Batch, logp: torch.Tensor) -> None:
    """Give a probe rows whose ratios lie around the narrow clips."""
    mask = probe.values["loss_mask"]
    generator = torch.Generator().manual_seed(1)
    ratios = 4e-3 * torch.rand(len(probe), 1, generator=generator) - 2e-3
    probe.values["old_log_probs"] = (logp.detach() - ratios) * mask
    sign = torch.where(torch.rand(len(probe), 1, generator=generator) < 0.5, -1.0, 1.0)
    probe.values["advantages"] = sign * mask


@traits(
    Config=GspoConfig,
    reads=("advantages", "old_log_probs"),
    fill_probe=fill_probe,
    skips_zero_advantage=True,
)
def gspo(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """Clipped loss with the ratio of the row at each token, [B, T].

    Raises:
        ContractError: the batch has no advantages or no old log-probabilities.
    """
    advantages, old_logp = batch.values["advantages"], batch.values["old_log_probs"]
    mask = batch.values["loss_mask"]
    logratio = torch.where(mask != 0, logp - old_logp, 0.0)
    mean = logratio.detach().sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)
    logp = torch.where(mask != 0, logp, 0.0)
    ratio = mean.exp() * (logp - logp.detach()).exp()
    pg_loss, is_clipped = clipped_surrogate(
        ratio, advantages, config.clip_ratio_low, config.clip_ratio_high
    )
    metrics = {
        "clip_fraction": masked_sum(is_clipped.float(), mask),
        "sequence_ratio": masked_sum(ratio, mask),
        "kl_to_sampler": masked_sum(k3(logratio.detach()), mask),
    }
    return pg_loss, metrics
