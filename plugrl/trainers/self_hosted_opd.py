"""On-policy distillation, on one page: a student learns from a teacher on what it samples itself.

Source: "On-Policy Distillation" (K. Lu, Thinking Machines Lab, 2025), after GKD (arXiv 2306.13649)
and MiniLLM (arXiv 2306.08543). The reverse KL divergence KL(student || teacher) is estimated at the
sampled tokens and becomes a policy gradient:

1. ``_prepare_batch`` has the teacher score the student's tokens; :func:`opd` makes advantages of
   the difference.
2. For each optimizer step, :mod:`plugrl.core.text.learn.step` runs the student over the rows of a
   minibatch, calls :func:`importance_sampling`, averages over trained tokens, clips the gradient
   and steps AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.component import NoConfig, traits
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.estimators import discounted_sum, k3
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import masked_sum
from plugrl.core.text.self_hosted import (
    PolicyAlgorithmConfig,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
)
from plugrl.trainers.kit import FROZEN
from plugrl.trainers.teachers import DistillationTrainer, TeacherOptions

if TYPE_CHECKING:
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class OpdConfig:
    """Options of the advantage ``opd``."""

    coefficient: float = described(1.0, "factor of the divergence", above=0, at_most=1000)
    discount: float = described(
        0.0, "share of the next token's advantage that a token gets too", at_least=0, at_most=1
    )


@traits(Config=OpdConfig, reads=("teacher_log_probs",), uses_rewards=False)
def opd(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch,
    config: Any,
) -> torch.Tensor:
    """How much likelier the teacher finds each token than the student that drew it, [B, T].

    The gradient of the reverse KL divergence (MiniLLM, equation 2), by sampled tokens: A_t =
    -coefficient (log student_t - log teacher_t), and with a discount d, A_t + d A_(t+1) + ... over
    the trained tokens of a row. Rewards play no part; invalid rows get 0.
    """
    student_logp, teacher_logp = batch.values["old_log_probs"], batch.values["teacher_log_probs"]
    mask = (batch.values["loss_mask"] != 0) & valid[:, None]
    reverse_kl = torch.where(mask, student_logp - teacher_logp, 0.0)
    advantages = -config.coefficient * reverse_kl
    if config.discount:
        advantages = discounted_sum(advantages, config.discount, valid=mask)
    return advantages


@traits(Config=NoConfig, reads=("advantages", "old_log_probs"), skips_zero_advantage=True)
def importance_sampling(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The policy gradient with importance sampling and no clip, [B, T].

    Source: the surrogate of conservative policy iteration, L^CPI in PPO (arXiv 1707.06347),
    equation 6: -A ratio. Its gradient at ratio 1 is that of REINFORCE.
    """
    advantages, old_logp = batch.values["advantages"], batch.values["old_log_probs"]
    mask = batch.values["loss_mask"]
    logratio = torch.where(mask != 0, logp - old_logp, 0.0)
    ratio = logratio.exp()
    pg_loss = -advantages * ratio
    metrics = {
        "ratio": masked_sum(ratio, mask),
        "kl_to_sampler": masked_sum(k3(logratio.detach()), mask),
    }
    return pg_loss, metrics


@dataclass
class OpdAlgorithmConfig(TeacherOptions, PolicyAlgorithmConfig):
    """Algorithm options of on-policy distillation."""

    advantage: Any = component("advantage", opd, help="from the teacher to advantages")
    loss: Any = component("loss", importance_sampling, help="from log-probabilities to a loss")


@dataclass
class SelfHostedOpdConfig(SelfHostedTrainerConfig):
    """The trainer section of ``self_hosted_opd``."""

    algorithm: OpdAlgorithmConfig = described(
        OpdAlgorithmConfig, "teacher, advantage, loss and their options"
    )


class SelfHostedOpdTrainer(DistillationTrainer, SelfHostedTrainer):
    """Moves a student towards a frozen teacher on what the student samples; rewards play no part.

    The teacher scores the student's tokens, all of which must mean the same to both.
    """

    Config: ClassVar[type] = SelfHostedOpdConfig
    uses_rewards: ClassVar[bool] = False
    #: What `_prepare_batch` adds and what of it is learned from; advantage or loss must read it.
    gives = ("teacher_log_probs", "advantages", "old_log_probs")
    signal = "teacher_log_probs"
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {"models": {"teacher": FROZEN}}

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        if "old_log_probs" not in batch.values:
            batch.values["old_log_probs"] = self._compute_old_log_probs(batch)
        batch = self._compute_advantage(self._add_teachers(batch))
        return batch, self._teacher_kl(batch)
