"""What the losses ``dpo``, ``ipo`` and ``kto`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from plugrl.core.text.learn.pairs import Pairs

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch

Metrics = dict[str, tuple[torch.Tensor, torch.Tensor]]


def pair_metrics(rewards: torch.Tensor, pairs: Pairs) -> Metrics:
    """How the implicit rewards, [B], of chosen and rejected answers compare; a tie is no win."""
    chosen = rewards.detach()[pairs.chosen]
    rejected = rewards.detach()[pairs.rejected]
    count = torch.tensor(len(pairs.chosen))
    return {
        "accuracy": ((chosen > rejected).float().sum(), count),
        "margin": ((chosen - rejected).sum(), count),
        "reward_chosen": (chosen.sum(), count),
        "reward_rejected": (rejected.sum(), count),
    }


def fill_probe(probe: Batch, logp: torch.Tensor) -> None:
    """Give a probe log-ratios of a few nats a row, where no sigmoid of them is flat.

    Sums over long answers would be flat at most rows, and a number would seem to have no effect.
    """
    mask = probe.values["loss_mask"]
    generator = torch.Generator().manual_seed(1)
    ratios = 4 * torch.rand(len(probe), generator=generator) - 2
    each = (ratios / mask.sum(1).clamp_min(1))[:, None]
    probe.values["ref_log_probs"] = (logp.detach() - each) * mask
