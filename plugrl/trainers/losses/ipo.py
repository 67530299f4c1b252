"""Identity Preference Optimization (arXiv 2310.12036), equation 17.

With h = (log p(chosen) - log ref(chosen)) - (log p(rejected) - log ref(rejected)), each the mean
over the answer's tokens: loss = (h - 1 / (2 beta))^2. The paper writes sums and calls beta tau; its
authors' results were made with means, which TRL uses too, so that beta means the same for answers
of all lengths. The implicit rewards of the metrics are of means too: beta times each side of h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.text.learn.pairs import Pairs, on_last_token, row_sums
from plugrl.trainers.losses.preferences import fill_probe, pair_metrics

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class IpoConfig:
    """Options of the loss ``ipo``."""

    beta: float = described(
        0.1, "the margin aimed at is 1 / (2 beta), in nats a token", above=0, at_most=1000
    )


@traits(
    Config=IpoConfig,
    reads=("ref_log_probs", "preferred"),
    compares_pairs=True,
    fill_probe=fill_probe,
)
def ipo(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The loss of each pair on the last trained token of both rows, [B, T].

    Raises:
        ContractError: the batch lacks pairs or the reference's log-probabilities.
    """
    mask = batch.values["loss_mask"]
    pairs = Pairs.of(batch, "ipo")
    logratio = row_sums(logp - batch.values["ref_log_probs"], mask)
    means = logratio / mask.sum(1).clamp_min(1)
    loss = (means[pairs.chosen] - means[pairs.rejected] - 1 / (2 * config.beta)).square()
    return on_last_token(pairs.spread(loss), mask), pair_metrics(means * config.beta, pairs)
