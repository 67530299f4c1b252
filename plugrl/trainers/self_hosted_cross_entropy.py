"""Supervised training on the tokens of trajectories, most often demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.text.batch import Batch
from plugrl.core.text.self_hosted import (
    AlgorithmConfig,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
)


@dataclass
class CrossEntropyAlgorithmConfig(AlgorithmConfig):
    """Algorithm options of supervised training."""

    loss: Any = component("loss", "cross_entropy", help="from log-probabilities to a loss")


@dataclass
class SelfHostedCrossEntropyConfig(SelfHostedTrainerConfig):
    """The trainer section of ``self_hosted_cross_entropy``."""

    algorithm: CrossEntropyAlgorithmConfig = described(CrossEntropyAlgorithmConfig, "loss options")


class SelfHostedCrossEntropyTrainer(SelfHostedTrainer):
    """Maximises the likelihood of the trained tokens; rewards play no part."""

    Config: ClassVar[type] = SelfHostedCrossEntropyConfig
    uses_rewards: ClassVar[bool] = False
    gives: ClassVar[tuple[str, ...]] = ()

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        return batch, {}
