"""Supervised training on the tokens of trajectories, most often demonstrations, on one page.

The batch needs nothing besides its tokens: ``_prepare_batch`` gives it back as it is. For each
optimizer step, :mod:`plugrl.core.text.learn.step` runs the model over the rows of a minibatch,
calls :func:`cross_entropy`, averages over trained tokens, clips the gradient and steps AdamW.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.component import NoConfig, traits
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import masked_sum
from plugrl.core.text.self_hosted import (
    AlgorithmConfig,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
)

if TYPE_CHECKING:
    from plugrl.core.text.learn.losses import LossOutput


@traits(Config=NoConfig, reads=())
def cross_entropy(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """Cross-entropy of each token, [B, T]: -log p(token)."""
    return -logp, {"log_prob": masked_sum(logp, batch.values["loss_mask"])}


@dataclass
class CrossEntropyAlgorithmConfig(AlgorithmConfig):
    """Algorithm options of supervised training."""

    loss: Any = component("loss", cross_entropy, help="from log-probabilities to a loss")


@dataclass
class SelfHostedCrossEntropyConfig(SelfHostedTrainerConfig):
    """The trainer section of ``self_hosted_cross_entropy``."""

    algorithm: CrossEntropyAlgorithmConfig = described(CrossEntropyAlgorithmConfig, "loss options")


class SelfHostedCrossEntropyTrainer(SelfHostedTrainer):
    """Maximises the likelihood of the trained tokens; rewards play no part."""

    Config: ClassVar[type] = SelfHostedCrossEntropyConfig
    uses_rewards: ClassVar[bool] = False
    #: Nothing is added to the batch, so that a loss which reads more is refused.
    gives: ClassVar[tuple[str, ...]] = ()

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        return batch, {}
