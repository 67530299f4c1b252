"""Direct Preference Optimization (arXiv 2305.18290), equation 7, with smoothed labels.

For a pair of a chosen and a rejected answer, with h = (log p(chosen) - log ref(chosen)) -
(log p(rejected) - log ref(rejected)), each the sum over the answer's tokens: loss =
-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h). With e > 0 it supposes that a share e of the
preferences is wrong (conservative DPO; E. Mitchell, "A note on DPO with noisy preferences", 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import logsigmoid

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.learn.pairs import Pairs, on_last_token
from plugrl.trainers.losses.preferences import awake, log_ratios, pair_metrics

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossAnswer


@dataclass
class DpoConfig:
    """Options of the loss ``dpo``."""

    beta: float = described(0.1, "how strongly the policy is held to the reference")
    label_smoothing: float = described(0.0, "share of preferences that are taken to be wrong")

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ConfigError("beta must be above 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError("label_smoothing must be from 0 to below 0.5")


def dpo(logp: torch.Tensor, batch: Batch, config: Any) -> LossAnswer:
    """The loss of each pair on the last trained token of both rows, [B, T].

    Raises:
        ContractError: the batch lacks pairs or the reference's log-probabilities.
    """
    pairs, ratios = Pairs.of(batch, "dpo"), log_ratios(logp, batch, "dpo")
    logits = config.beta * (ratios[pairs.chosen] - ratios[pairs.rejected])
    smoothing = config.label_smoothing
    loss = -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)
    per_token = on_last_token(pairs.spread(loss), batch.values["loss_mask"])
    return per_token, pair_metrics(ratios * config.beta, pairs)


dpo.Config = DpoConfig  # type: ignore[attr-defined]
dpo.reads = ("ref_log_probs", "preferred")  # type: ignore[attr-defined]
dpo.compares_pairs = True  # type: ignore[attr-defined]
dpo.awake = awake  # type: ignore[attr-defined]
