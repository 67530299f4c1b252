"""What ``ppo`` and ``grpo`` share: the clipped loss against the tester that said the probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, Term, WeightedLoss
from plugrl.core.text.learn.policy_options import terms_of
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.rollout.metrics import mean_metrics
from plugrl.trainers.red_team.trees import rows, to_device
from plugrl.trainers.self_hosted_grpo import ClippedConfig, clipped

if TYPE_CHECKING:
    import torch

    from plugrl.core.text.batch import Batch
    from plugrl.core.text.trajectory import Trajectory


@dataclass
class PolicyGradientConfig(ClippedConfig):
    """Options of the clipped loss, of returns and of passes."""

    gamma: float = described(
        1.0, "discount of a later exchange, for each turn in between", at_least=0, at_most=1
    )
    epochs: int = described(1, "passes over each experience", at_least=1, at_most=10**5)
    entropy_coefficient: float = described(
        0.0, "factor of the entropy that the loss rewards", at_least=0, at_most=1000
    )


class PolicyGradientAlgorithm(HarnessAlgorithm):
    """The clipped loss over tokens of probes; a subclass says what their advantages are.

    The ratio is to the log-probabilities with which the probe was sampled: it is 1 before the
    first update of an experience, and beyond the clip range there is no gradient.
    """

    @property
    def epochs(self) -> int:
        """Passes over each experience."""
        return int(self.config.epochs)

    @staticmethod
    def collate_fn(steps: Sequence[Trajectory]) -> Batch:
        """Probes as rows; each token of the batch counts as much as any other."""
        batch = rows(steps)
        mask = batch.values["loss_mask"]
        batch.values[LOSS_WEIGHTS] = aggregation_weights(mask, "token-mean")
        return batch

    def step(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """The clipped loss and its terms, averaged over tokens."""
        loss = WeightedLoss(clipped, self.config, self.terms)
        logp, extras = self.system.log_probs(batch, loss.needs)
        batch = to_device(batch, logp.device)
        batch.values.update(extras)
        total, metrics = loss(logp, batch)
        return total, mean_metrics(metrics)

    @property
    def terms(self) -> tuple[Term, ...]:
        """What is added to the loss."""
        return tuple(terms_of(self._terms, values=self.needs_values))

    @property
    def _terms(self) -> dict[str, Any]:
        return {"entropy_coefficient": self.config.entropy_coefficient}
