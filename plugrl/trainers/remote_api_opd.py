"""On-policy distillation on a service of named losses.

Source: GKD (arXiv 2306.13649) and MiniLLM (arXiv 2306.08543), on tokens that the student sampled:
the advantage of a token is -coefficient * (logp_student - logp_teacher), so that the gradient is
that of the reverse KL divergence from the teacher. With a discount g, the advantage of a token also
holds g times that of the next trained token: then a token answers for what follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.batch import Batch
from plugrl.core.text.datums import with_logprobs
from plugrl.core.text.remote_api import (
    RemoteApiTrainer,
    RemoteApiTrainerConfig,
    RemoteLossConfig,
)
from plugrl.core.text.remote_service import RemoteTrainService
from plugrl.core.text.scoring import check_same_tokens, score_batch
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass
class RemoteOpdAlgorithmConfig(RemoteLossConfig):
    """Algorithm options of on-policy distillation."""

    teacher: str = described("teacher", "entry of models that is learned from")
    coefficient: float = described(1.0, "factor of the divergence")
    discount: float = described(0.0, "share of the next trained token's advantage that is added")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coefficient <= 0:
            raise ConfigError("coefficient must be above 0")
        if not 0 <= self.discount <= 1:
            raise ConfigError("discount must be from 0 to 1")


@dataclass
class RemoteApiOpdConfig(RemoteApiTrainerConfig):
    """The trainer section of ``remote_api_opd``."""

    algorithm: RemoteOpdAlgorithmConfig = described(
        RemoteOpdAlgorithmConfig, "teacher, loss and their options"
    )


class RemoteApiOpdTrainer(RemoteApiTrainer):
    """Moves a student towards a teacher on what the student samples; rewards play no part."""

    Config: ClassVar[type] = RemoteApiOpdConfig
    uses_rewards: ClassVar[bool] = False

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Besides what every remote-API trainer looks for: the teacher."""
        yield from super().preflight(check)
        name, models = check.section.algorithm.teacher, check.root.get("models") or {}
        if name not in models:
            message = f"no model {name!r} in models, which has: {', '.join(models) or 'none'}"
            yield "trainer.algorithm.teacher", message
        elif models[name].get("train") is not None:
            message = "a teacher is not trained; leave its train service out"
            yield f"models.{name}.train", message

    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        if not trajectories:
            return trajectories
        name, algorithm = trajectories[0].model, self.config.algorithm
        student, teacher = self.models[name], self.models[algorithm.teacher].inference
        trajectories = with_logprobs(student.trained_by(RemoteTrainService), trajectories)
        batch = Batch.from_trajectories(trajectories)
        check_same_tokens(algorithm.teacher, teacher, name, student.inference, batch)
        mask = batch.values["loss_mask"] != 0
        gaps = (batch.values["old_log_probs"] - score_batch(teacher, batch)) * mask
        for trajectory, row, trained in zip(trajectories, gaps, mask, strict=True):
            advantages = (-algorithm.coefficient * row[trained]).tolist()
            trajectory.token_advantages = discounted(advantages, algorithm.discount)
        if bool(mask.any()):
            metrics["teacher_kl"] = float(gaps[mask].mean())
        return trajectories


def discounted(values: Sequence[float], discount: float) -> list[float]:
    """Each value plus ``discount`` times the sum that belongs to the next one."""
    total, sums = 0.0, []
    for value in reversed(values):
        total = value + discount * total
        sums.append(total)
    return sums[::-1]
