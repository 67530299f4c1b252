"""On-policy distillation: a student learns from a teacher on what the student itself samples.

Source: "On-Policy Distillation" (K. Lu, Thinking Machines Lab, 2025), after GKD (arXiv 2306.13649)
and MiniLLM (arXiv 2306.08543). The reverse KL divergence KL(student || teacher) is estimated at the
sampled tokens; advantage and loss say how it becomes a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.text.batch import Batch
from plugrl.core.text.self_hosted import (
    PolicyAlgorithmConfig,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
)
from plugrl.trainers.kit import FROZEN
from plugrl.trainers.teachers import TaughtTrainer, TeacherOptions


@dataclass
class OpdAlgorithmConfig(TeacherOptions, PolicyAlgorithmConfig):
    """Algorithm options of on-policy distillation."""

    advantage: Any = component("advantage", "opd", help="from the teacher to advantages")
    loss: Any = component("loss", "importance_sampling", help="from log-probabilities to a loss")


@dataclass
class SelfHostedOpdConfig(SelfHostedTrainerConfig):
    """The trainer section of ``self_hosted_opd``."""

    algorithm: OpdAlgorithmConfig = described(
        OpdAlgorithmConfig, "teacher, advantage, loss and their options"
    )


class SelfHostedOpdTrainer(TaughtTrainer, SelfHostedTrainer):
    """Moves a student towards a frozen teacher on what the student samples; rewards play no part.

    The teacher scores the student's tokens, all of which must mean the same to both.
    """

    Config: ClassVar[type] = SelfHostedOpdConfig
    uses_rewards: ClassVar[bool] = False
    gives = ("teacher_log_probs", "advantages", "old_log_probs")
    signal = "teacher_log_probs"
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {"models": {"teacher": FROZEN}}

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        if "old_log_probs" not in batch.values:
            batch.values["old_log_probs"] = self._compute_old_log_probs(batch)
        batch = self._compute_advantage(self._add_teachers(batch))
        return batch, self._teacher_kl(batch)
