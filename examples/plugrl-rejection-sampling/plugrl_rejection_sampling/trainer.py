"""Rejection-sampling fine-tuning: learn from the best answers of each group (arXiv 2304.06767)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from plugrl import (
    AlgorithmConfig,
    Batch,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
    component,
    described,
    group_numbers,
)


@dataclass
class RejectionSamplingAlgorithm(AlgorithmConfig):
    """Options under ``trainer.algorithm``."""

    loss: Any = component("loss", "cross_entropy", help="loss on the kept answers")
    threshold: float = described(0.0, "answers are kept only above this reward")


@dataclass
class RejectionSamplingConfig(SelfHostedTrainerConfig):
    """The trainer section of ``rejection_sampling``."""

    algorithm: RejectionSamplingAlgorithm = described(RejectionSamplingAlgorithm, "its options")


class RejectionSamplingTrainer(SelfHostedTrainer):
    """Trains on the best answers of each group, those above ``threshold``."""

    Config: ClassVar[type] = RejectionSamplingConfig

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        rewards, valid = batch.metadata["rewards"], batch.metadata["valid"]
        group = group_numbers(batch.metadata["group_id"])
        best = torch.full((int(group.max()) + 1,), -torch.inf)
        best = best.scatter_reduce(0, group[valid], rewards[valid], "amax")
        kept = valid & (rewards == best[group]) & (rewards > self.config.algorithm.threshold)
        batch.values["loss_mask"] = batch.values["loss_mask"] * kept[:, None]
        return batch, {"kept": float(kept.float().mean())}
