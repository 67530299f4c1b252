"""Group Relative Policy Optimization, on one page (DeepSeekMath, arXiv 2402.03300).

A step, from top to bottom:

1. The rollouts of a step are a batch of B answers, several to each prompt. ``_prepare_batch`` has
   each one's advantage over its group computed by :func:`grpo`.
2. For each optimizer step, :mod:`plugrl.core.text.learn.step` takes the rows of a minibatch, runs
   the model over them and calls :func:`clipped` with the log-probability of every token.
3. The same file masks and weighs the loss per token, takes the gradient over all micro-batches,
   clips it and steps AdamW.

A copy of this file is an algorithm of your own: named in ``trainer.custom_trainer_module_path``, it
trains with the functions of the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.estimators import clipped_surrogate, group_statistics, k3
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import signal_metrics
from plugrl.core.text.learn.losses import masked_sum
from plugrl.core.text.self_hosted import (
    PolicyAlgorithmConfig,
    SelfHostedTrainer,
    SelfHostedTrainerConfig,
)
from plugrl.trainers.losses.clip_range import ClipRange

if TYPE_CHECKING:
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class GrpoConfig:
    """Options of the advantage ``grpo``."""

    normalize: bool = described(True, "divide by the group's standard deviation")
    epsilon: float = described(1e-6, "added to the standard deviation", at_least=0, at_most=1)


@traits(Config=GrpoConfig, reads=(), compares_attempts=True)
def grpo(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch | None,
    config: Any,
) -> torch.Tensor:
    """Advantages relative to the group, [B]; invalid rows get 0 and count nowhere.

    Source: the equation for outcome supervision, A = (r - mean(r)) / (std(r) + epsilon), std being
    the sample standard deviation (one degree of freedom), as in TRL. With r the mean reward of each
    run of a group; every row of a run gets the run's advantage. A group of one run, or of equal
    rewards, has advantage 0: it holds nothing to compare.
    """
    r, mean, std, _ = group_statistics(rewards, group, run, valid)
    advantages = r - mean
    if config.normalize:
        advantages = advantages / (std + config.epsilon)
    return advantages.float()


@dataclass
class ClippedConfig(ClipRange):
    """Options of the loss ``clipped``."""

    clip_ratio_dual: float | None = described(
        None,
        "bound of the ratio's effect at negative advantages, above 1; null: none",
        above=1,
        at_most=1e6,
    )


@traits(Config=ClippedConfig, reads=("advantages", "old_log_probs"), skips_zero_advantage=True)
def clipped(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The clipped policy-gradient loss of each token, [B, T], and metrics as (sum, count).

    Source: PPO (arXiv 1707.06347), equation 7, with separate lower and upper ranges (DAPO, arXiv
    2503.14476, equation 10) and the dual clip for negative advantages (arXiv 1912.09729, equation
    5): max(-A ratio, -A clip(ratio, 1 - low, 1 + high)), and for A < 0 at most -A dual.
    """
    advantages, old_logp = batch.values["advantages"], batch.values["old_log_probs"]
    mask = batch.values["loss_mask"]
    # What is not trained may hold anything, and zero times infinity is NaN, in a gradient too.
    logratio = torch.where(mask != 0, logp - old_logp, 0.0)
    ratio = logratio.exp()
    pg_loss, is_clipped = clipped_surrogate(
        ratio,
        advantages,
        low=config.clip_ratio_low,
        high=config.clip_ratio_high,
        dual=config.clip_ratio_dual,
    )
    metrics = {
        "clip_fraction": masked_sum(is_clipped.float(), mask),
        "kl_to_sampler": masked_sum(k3(logratio.detach()), mask),
    }
    return pg_loss, metrics


@dataclass
class GrpoAlgorithmConfig(PolicyAlgorithmConfig):
    """Algorithm options of ``self_hosted_grpo``: these functions, unless others are named."""

    advantage: Any = component("advantage", grpo, help="from rewards to advantages")
    loss: Any = component("loss", clipped, help="from log-probabilities to a loss per token")


@dataclass
class SelfHostedGrpoConfig(SelfHostedTrainerConfig):
    """The trainer section of ``self_hosted_grpo``."""

    algorithm: GrpoAlgorithmConfig = described(
        GrpoAlgorithmConfig, "advantage, loss and their options"
    )


class SelfHostedGrpoTrainer(SelfHostedTrainer):
    """Samples several answers to each prompt and reinforces those above the group's mean.

    The behaviour log-probabilities kept from sampling are the old ones of the ratio: in ``sync``
    mode they are exact, so no second forward pass is made.
    """

    Config: ClassVar[type] = SelfHostedGrpoConfig
    #: What `_prepare_batch` adds and what of it is learned from; a loss must read it.
    gives = ("advantages", "old_log_probs")
    signal = "advantages"

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        if "old_log_probs" not in batch.values:
            batch.values["old_log_probs"] = self._compute_old_log_probs(batch)
        # Calls `grpo`, or what algorithm.advantage names, after penalties changed the rewards.
        batch = self._compute_advantage(batch)
        return batch, signal_metrics(batch.metadata["advantages"])
