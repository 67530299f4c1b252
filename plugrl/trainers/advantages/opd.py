"""On-policy distillation: how much likelier a teacher finds a token than the student that drew it.

Source: "On-Policy Distillation" (K. Lu, Thinking Machines Lab, 2025); the gradient of the reverse
KL divergence, MiniLLM (arXiv 2306.08543), equation 2, by sampled tokens. With S the student's
log-probability when it sampled and T the teacher's: A_t = -coefficient (S_t - T_t), and with a
discount d, A_t + d A_(t+1) + ... over the trained tokens of a row. Rewards play no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.losses import required
from plugrl.core.text.learn.token_rewards import discounted

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@dataclass
class OpdConfig:
    """Options of the advantage ``opd``."""

    coefficient: float = described(1.0, "factor of the divergence")
    discount: float = described(0.0, "share of the next token's advantage that a token gets too")

    def __post_init__(self) -> None:
        if self.coefficient <= 0:
            raise ConfigError("coefficient must be above 0")
        if not 0 <= self.discount <= 1:
            raise ConfigError("discount must be from 0 to 1")


def opd(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch,
    config: Any,
) -> torch.Tensor:
    """The teacher's preference for each trained token, [R, T]; invalid rows get 0.

    Raises:
        ContractError: the batch has no ``teacher_log_probs`` or no ``old_log_probs``.
    """
    teacher, student = required(batch, "of advantage opd", "teacher_log_probs", "old_log_probs")
    mask = (batch.values["loss_mask"] != 0) & valid[:, None]
    gap = torch.where(mask, -config.coefficient * (student - teacher), 0.0)
    return discounted(gap, mask, config.discount) if config.discount else gap


opd.Config = OpdConfig  # type: ignore[attr-defined]
opd.reads = ("teacher_log_probs",)  # type: ignore[attr-defined]
opd.uses_rewards = False  # type: ignore[attr-defined]
