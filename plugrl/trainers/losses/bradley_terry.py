"""The Bradley-Terry loss of a reward model (arXiv 2203.02155, equation 1).

With r the value of an answer: loss = -log sigmoid(r(chosen) - r(rejected) - margin), where a pair
may have a margin (arXiv 2307.09288, equation 2), plus c (r(chosen) + r(rejected))^2, which centres
rewards on 0 (arXiv 2312.09244).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import logsigmoid

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.learn.pairs import Pairs, last_token, on_last_token, row_sums
from plugrl.trainers.losses.preferences import pair_metrics

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossAnswer


@dataclass
class BradleyTerryConfig:
    """Options of the loss ``bradley_terry``."""

    center_coefficient: float = described(
        0.0, "factor of the squared sum of a pair's rewards; 0: rewards have no fixed zero"
    )

    def __post_init__(self) -> None:
        if self.center_coefficient < 0:
            raise ConfigError("center_coefficient must not be negative")


def bradley_terry(logp: torch.Tensor, batch: Batch, config: Any) -> LossAnswer:
    """The loss of each pair on the last trained token of both rows, [B, T].

    A row's reward is the value of the state before its last trained token; trainer
    ``reward_model`` adds that token behind the answer. Log-probabilities play no part.

    Raises:
        ContractError: the batch lacks pairs or values.
    """
    if "values" not in batch.values:
        raise ContractError(
            "loss bradley_terry needs batch.values['values'], which a train service with a value "
            "head gives; take trainer reward_model and models.<name>.train.value_head=true"
        )
    mask, pairs = batch.values["loss_mask"], Pairs.of(batch, "bradley_terry")
    rewards = row_sums(batch.values["values"], last_token(mask))
    chosen, rejected = rewards[pairs.chosen], rewards[pairs.rejected]
    margin = batch.metadata.get("margin")
    gap = chosen - rejected
    if margin is not None:
        gap = gap - margin[pairs.chosen].to(gap)
    loss = -logsigmoid(gap) + config.center_coefficient * (chosen + rejected).square()
    return on_last_token(pairs.spread(loss), mask), pair_metrics(rewards, pairs)


bradley_terry.Config = BradleyTerryConfig  # type: ignore[attr-defined]
bradley_terry.reads = ("preferred",)  # type: ignore[attr-defined]
bradley_terry.needs = ("values",)  # type: ignore[attr-defined]
bradley_terry.compares_pairs = True  # type: ignore[attr-defined]
bradley_terry.takes_margins = True  # type: ignore[attr-defined]
