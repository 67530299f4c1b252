"""Teachers of on-policy distillation: which models they are, and what they say of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.reference import FrozenModels
from plugrl.core.text.preflight import model_findings
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass
class TeacherOptions:
    """Whom a student learns from."""

    teacher: list[str] | str = described(
        "teacher", "entry of models that is learned from, or several: the mean of their logarithms"
    )
    teacher_key: str | None = described(
        None,
        "data column that names the teacher of each problem, among those of teacher",
        names="column",
    )

    def __post_init__(self) -> None:
        parent: Any = super()
        if hasattr(parent, "__post_init__"):
            parent.__post_init__()
        if not self.teacher:
            raise ConfigError("teacher must name at least one entry of models")


class DistillationTrainer(TrajectoryTrainer):
    """A trajectory trainer whose ``algorithm`` section has :class:`TeacherOptions`."""

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Besides what other trainers look for: the teachers."""
        yield from super().preflight(check)
        for name in _names(check.section.algorithm.teacher):
            yield from model_findings(check, "trainer.algorithm.teacher", name, role="a teacher")

    def _carried_columns(self) -> Sequence[str]:
        key = self.config.algorithm.teacher_key
        columns = super()._carried_columns()
        return columns if key is None else [*columns, key]

    def _add_teachers(self, batch: Batch) -> Batch:
        """Add ``teacher_log_probs`` ([B, T]), at the temperature of the sampling.

        Raises:
            ConfigError: a teacher is no model, or its tokens are others.
            RunError: a problem names none of the teachers.
        """
        names, key = _names(self.config.algorithm.teacher), self.config.algorithm.teacher_key
        if key is None:
            scores = [self._frozen.score(name, batch) for name in names]
            batch.values["teacher_log_probs"] = torch.stack(scores).mean(0)
            return batch
        wanted = batch.metadata.get(key, [None] * len(batch))
        chosen = torch.zeros(batch.values["loss_mask"].shape)
        trained = (batch.values["loss_mask"] != 0).any(1).tolist()
        for name, some in zip(wanted, trained, strict=True):
            if some and name not in names:
                raise RunError(
                    f"a problem has {key}={name!r} (trainer.algorithm.teacher_key), which is none "
                    f"of the teachers: {', '.join(names)}"
                )
        for name in names:
            rows = torch.tensor([entry == name for entry in wanted])
            chosen += self._frozen.score(name, batch, rows)
        batch.values["teacher_log_probs"] = chosen
        return batch

    @cached_property
    def _frozen(self) -> FrozenModels:
        return FrozenModels(self.models)

    @staticmethod
    def _teacher_kl(batch: Batch) -> dict[str, float]:
        """The metric of that name: how much likelier the student finds its tokens, on average."""
        mask = batch.values["loss_mask"] != 0
        gaps = (batch.values["old_log_probs"] - batch.values["teacher_log_probs"])[mask]
        return {"teacher_kl": float(gaps.mean())} if len(gaps) else {}


def _names(teacher: Any) -> list[str]:
    return [teacher] if isinstance(teacher, str) else list(teacher)
