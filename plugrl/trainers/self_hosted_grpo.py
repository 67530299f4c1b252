"""Group Relative Policy Optimization on a train service of our own (arXiv 2402.03300)."""

from __future__ import annotations

from typing import ClassVar

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import signal
from plugrl.core.text.self_hosted import SelfHostedTrainer, SelfHostedTrainerConfig


class SelfHostedGrpoTrainer(SelfHostedTrainer):
    """Samples several answers to each prompt and reinforces those above the group's mean.

    The behaviour log-probabilities kept from sampling are the old ones of the ratio: in ``sync``
    mode they are exact, so no second forward pass is made.
    """

    #: Named here, so that a key which it does not know is an error and not a free key.
    Config: ClassVar[type] = SelfHostedTrainerConfig
    gives = ("advantages", "old_log_probs")
    signal = "advantages"

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        if "old_log_probs" not in batch.values:
            batch.values["old_log_probs"] = self._compute_old_log_probs(batch)
        batch = self._compute_advantage(batch)
        return batch, signal(batch.metadata["advantages"])
