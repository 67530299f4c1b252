"""On-policy distillation on a service of named losses.

Source: the advantage ``opd``, which names them. With the loss ``importance_sampling`` the gradient
is that of the reverse KL divergence from the teacher, on tokens that the student sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.text.batch import Batch
from plugrl.core.text.remote.datums import with_logprobs
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
        trajectories = with_logprobs(service, trajectories)
        batch = self._add_teachers(Batch.from_trajectories(trajectories))
        metrics |= self._teacher_kl(batch)
        return self._compute_advantage(trajectories, batch)
