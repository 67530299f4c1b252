"""``grpo``: each probe against the others that followed the same dialogue.

With G the returns of the siblings, A = (G - mean(G)) / (std(G) + epsilon) for every token of the
probe, std being the sample deviation (DeepSeekMath, arXiv 2402.03300); without the division it is
Dr. GRPO's (arXiv 2503.20783). The loss is the clipped one (arXiv 1707.06347, equation 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import group_statistics
from plugrl.core.text.learn.policy_options import KlLossConfig
from plugrl.trainers.red_team.policy_gradient import PolicyGradientAlgorithm, PolicyGradientConfig
from plugrl.trainers.red_team.trees import on_tokens, reference_of, returns_of

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.tree import RolloutTree
    from plugrl.core.text.trajectory import Trajectory


@dataclass
class HarnessGrpoConfig(PolicyGradientConfig):
    """Options of the algorithm ``grpo``."""

    normalize: bool = described(True, "divide by the siblings' standard deviation")
    epsilon: float = described(1e-6, "added to the standard deviation", at_least=0, at_most=1)
    kl: KlLossConfig = described(KlLossConfig, "term for leaving the baseline")


class HarnessGrpo(PolicyGradientAlgorithm):
    """Policy gradients with advantages within groups of siblings.

    A group with fewer than two valid exchanges, or with equal returns, holds nothing to compare
    and gives no step.
    """

    Config: ClassVar[type] = HarnessGrpoConfig
    least_width: ClassVar[int] = 2
    least_width_reason: ClassVar[str] = "a probe is worth as much as it is better than its siblings"

    @property
    def needs_baseline(self) -> bool:  # type: ignore[override]
        """Whether leaving the baseline costs something."""
        return bool(self.config.kl.coefficient)

    def flatten(self, tree: RolloutTree) -> Sequence[Trajectory]:
        """The probes of groups that differ in their returns."""
        returns = returns_of(tree, self.config.gamma)
        groups = [[n for n in group if n.valid and n.probe_tokens] for group in tree.siblings()]
        nodes = [node for group in groups for node in group]
        group = torch.tensor([i for i, own in enumerate(groups) for _ in own], dtype=torch.long)
        every = torch.ones(len(nodes), dtype=torch.bool)
        worth = torch.tensor([returns[id(node)] for node in nodes], dtype=torch.float64)
        # Each probe is a run of its own.
        _, mean, std, _ = group_statistics(worth, group, torch.arange(len(nodes)), every)
        advantages = worth - mean
        if self.config.normalize:
            advantages /= std + self.config.epsilon
        found = []
        for node, advantage, compares in zip(nodes, advantages, std.isfinite(), strict=True):
            if not compares:
                continue
            numbers = [float(advantage)] * len(node.probe_tokens)
            extra: dict[str, Any] = {"advantages": on_tokens(node, numbers)}
            if self.needs_baseline:
                extra["ref_log_probs"] = reference_of(node, "grpo")
            found.append(node.trajectory(**extra))
        return found

    @property
    def _terms(self) -> dict[str, Any]:
        return {**super()._terms, "kl": {"loss": dict(self.config.kl)}}
