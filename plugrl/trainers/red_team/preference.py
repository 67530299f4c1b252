"""What ``dpo`` and ``ipo`` share: the best probe against the worst of those that had a choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.minibatches import UNIT
from plugrl.core.text.learn.pairs import PREFERRED, row_sums
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.rollout.metrics import mean_metrics
from plugrl.trainers.red_team.trees import reference_of, returns_of, rows, to_device

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree
    from plugrl.core.text.trajectory import Trajectory

#: A probe that was better, and one that was worse.
Pair = tuple["Trajectory", "Trajectory"]


@dataclass
class PairConfig:
    """How probes after one dialogue become a pair."""

    by: Literal["reward", "return"] = described(
        "reward", "compare rewards of the exchange alone, or with those that followed"
    )
    gamma: float = described(1.0, "discount of later exchanges in a return", at_least=0, at_most=1)
    min_margin: float = described(
        0.0, "pairs must differ by more than this", at_least=0, at_most=1e6
    )


class PreferenceAlgorithm(HarnessAlgorithm):
    """Pairs of every group of siblings: the one of most reward and the one of least.

    A group whose rewards tie, or whose best and worst probe are the same tokens, gives no pair.
    Failed exchanges are left out; what grew below a group that gave none is read all the same.
    """

    least_width: ClassVar[int] = 2
    least_width_reason: ClassVar[str] = "it compares probes that followed one dialogue"
    needs_baseline: ClassVar[bool] = True
    #: A loss over pairs and its name.
    loss: ClassVar[Callable[..., Any]]
    name: ClassVar[str]

    def flatten(self, tree: RolloutTree) -> Sequence[Pair]:
        """The pairs of one tree, turn by turn."""
        worth = self._worth(tree)
        found = []
        for group in tree.siblings():
            kept = [node for node in group if node.valid and node.probe_tokens]
            if len(kept) < 2:
                continue
            best = max(kept, key=lambda node: worth[id(node)])
            worst = min(kept, key=lambda node: worth[id(node)])
            margin = worth[id(best)] - worth[id(worst)]
            if margin > self.config.min_margin and best.probe_tokens != worst.probe_tokens:
                found.append((self._row(best, 1.0), self._row(worst, 0.0)))
        return found

    def _worth(self, tree: RolloutTree) -> dict[int, float]:
        gamma = self.config.gamma if self.config.by == "return" else 0.0
        return returns_of(tree, gamma)

    def _row(self, node: RolloutNode, preferred: float) -> Trajectory:
        extra = {PREFERRED: preferred, "ref_log_probs": reference_of(node, self.name)}
        return node.trajectory(**extra)

    @staticmethod
    def collate_fn(steps: Sequence[Pair]) -> Batch:
        """Pairs as rows, the better one of each before the worse."""
        batch = rows([row for pair in steps for row in pair])
        batch.metadata[UNIT] = torch.arange(len(steps)).repeat_interleave(2)
        mask = batch.values["loss_mask"]
        batch.values[LOSS_WEIGHTS] = aggregation_weights(mask, "seq-mean-token-sum")
        return batch

    def step(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """The mean loss over pairs."""
        logp, _ = self.system.log_probs(batch)
        batch = to_device(batch, logp.device)
        loss, metrics = WeightedLoss(type(self).loss, self.config)(logp, batch)
        sums = row_sums(logp.detach(), batch.values["loss_mask"])
        chosen = batch.metadata[PREFERRED].to(sums.device) != 0
        return loss, mean_metrics(metrics) | {
            "logprobs_chosen": float(sums[chosen].mean()),
            "logprobs_rejected": float(sums[~chosen].mean()),
        }
