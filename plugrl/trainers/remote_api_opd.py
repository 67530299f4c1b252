"""On-policy distillation on a service that has losses by name, on one page.

Source: "On-Policy Distillation" (K. Lu, Thinking Machines Lab, 2025), after GKD (arXiv 2306.13649)
and MiniLLM (arXiv 2306.08543). A step, from top to bottom:

1. ``_prepare_trajectories`` has the teacher score the tokens that the student sampled, and
   :func:`plugrl.trainers.self_hosted_opd.opd` makes advantages of the difference:
   A_t = -coefficient (log student_t - log teacher_t).
2. For each optimizer step, :class:`RemoteApiTrainer` sends tokens, mask, log-probabilities of the
   sampler and advantages.
3. The service takes the gradient of ``algorithm.loss_fn``, by default ``importance_sampling``,
   -A r, which is that of the reverse KL divergence from the teacher, and steps AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.text.batch import Batch
from plugrl.core.text.remote.datums import fill_missing_logprobs
from plugrl.core.text.remote.service import RemoteTrainService
from plugrl.core.text.remote_api import (
    RemoteApiTrainer,
    RemoteApiTrainerConfig,
    RemoteLossConfig,
)
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.kit import FROZEN, NAMED_LOSSES
from plugrl.trainers.teachers import DistillationTrainer, TeacherOptions


@dataclass
class RemoteOpdAlgorithmConfig(TeacherOptions, RemoteLossConfig):
    """Algorithm options of on-policy distillation."""

    advantage: Any = component("advantage", "opd", help="from the teacher to advantages")


@dataclass
class RemoteApiOpdConfig(RemoteApiTrainerConfig):
    """The trainer section of ``remote_api_opd``."""

    algorithm: RemoteOpdAlgorithmConfig = described(
        RemoteOpdAlgorithmConfig, "teacher, loss and their options"
    )


class RemoteApiOpdTrainer(DistillationTrainer, RemoteApiTrainer):
    """Moves a student towards a teacher on what the student samples; rewards play no part."""

    Config: ClassVar[type] = RemoteApiOpdConfig
    uses_rewards: ClassVar[bool] = False
    learns_by_advantages: ClassVar[bool] = True
    #: For the conformance kit: a service that has losses by name, and another model to learn from.
    conformance: ClassVar[Mapping[str, Any]] = {
        "models": {"policy": NAMED_LOSSES, "teacher": FROZEN}
    }

    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        if not trajectories:
            return trajectories
        service = self.models[trajectories[0].model].trained_by(RemoteTrainService)
        # The divergence compares with the student as it sampled; a worker may keep no numbers.
        trajectories = fill_missing_logprobs(service, trajectories)
        batch = self._add_teachers(Batch.from_trajectories(trajectories))
        metrics |= self._teacher_kl(batch)
        return self._compute_advantage(trajectories, batch)
