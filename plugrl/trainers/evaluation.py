"""Evaluation alone: a run that validates its models and trains none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import UsageError
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer
from plugrl.core.trainer import Capabilities, TrainingResult

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass
class EvaluationConfig:
    """The trainer section of ``evaluation``: it has no options."""


class EvaluationTrainer(TrajectoryTrainer):
    """Attempts the problems of ``validate`` once and writes the metrics as step 0.

    ``plugrl eval MODEL EVALUATION`` uses it for model folders.
    """

    Config: ClassVar[type] = EvaluationConfig
    capabilities: ClassVar[Capabilities] = Capabilities(resume=False)
    #: Sections with which the conformance kit runs it.
    conformance: ClassVar[Mapping[str, Any]] = {"trainer": {"total_train_steps": None}}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """What is missing of the models that are asked and of the held-out problems."""
        for path, message in super().preflight(check):
            if path.startswith(("rollout_worker", "validate")):
                yield path, message

    def train(self) -> TrainingResult:
        """Evaluate the models as their sources give them."""
        with self.run.phase("validate"):
            scores = self.evaluate()
        self._end_step(0, scores)
        return TrainingResult(steps=0, metrics=scores)

    @property
    def complete(self) -> bool:
        """Whether the one step has ended."""
        return self._step >= 0

    def _end_step(self, step: int, metrics: dict[str, float]) -> None:
        self._step = step
        self.run.end_step(step, metrics)

    def train_step(self, trajectories: list[Trajectory]) -> dict[str, Any]:
        """Nothing is trained.

        Raises:
            UsageError: always.
        """
        raise UsageError("the trainer evaluation trains nothing; choose another trainer.type")
