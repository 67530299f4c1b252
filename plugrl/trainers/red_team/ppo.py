"""``ppo``: the tester learns with values of what it may still reach.

Generalized advantage estimation (arXiv 1506.02438, equation 16) over the tokens of a dialogue: a
token earns nothing but the last one of a probe, which earns the reward of its exchange. Within a
probe nothing is discounted; to the next turn it is by gamma. With V the value of the state before
a token, V' that before the next token, and d = r + g V' - V with g = 1 within a probe and gamma at
its end, A = d + g lambda A'. Where a dialogue went on several ways, V' and A' are the means over
them. With lambda = 1 that is the return of the turn minus V. The loss is the clipped one
(arXiv 1707.06347, equations 7 and 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import gae, whiten
from plugrl.core.text.learn.policy_options import ValueConfig
from plugrl.trainers.red_team.policy_gradient import PolicyGradientAlgorithm, PolicyGradientConfig
from plugrl.trainers.red_team.trees import on_tokens, rows

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree
    from plugrl.core.text.trajectory import Trajectory

#: Rows whose values are computed at once.
_ROWS = 64


@dataclass
class HarnessPpoConfig(PolicyGradientConfig):
    """Options of the algorithm ``ppo``."""

    epochs: int = described(4, "passes over each experience", at_least=1, at_most=10**5)
    advantage: Literal["return_to_go", "gae"] = described(
        "return_to_go", "the return of the turn minus the value; or between that and one step"
    )
    lam: float = described(
        0.95, "gae: weight of longer returns, 0 one step, 1 the whole return", at_least=0, at_most=1
    )
    normalize: bool = described(
        True, "subtract the mean and divide by the deviation over an experience's tokens"
    )
    epsilon: float = described(1e-8, "added to the deviation", at_least=0, at_most=1)
    value: ValueConfig = described(ValueConfig, "loss of the value head")


@dataclass
class ProbeStep:
    """One probe, what followed it, and the numbers of its tokens."""

    node: RolloutNode
    following: list[ProbeStep] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)


class HarnessPpo(PolicyGradientAlgorithm):
    """Policy gradients with a value head; trees of width 1 will do."""

    Config: ClassVar[type] = HarnessPpoConfig

    @property
    def needs_values(self) -> bool:
        """The advantage is taken from values."""
        return True

    def flatten(self, tree: RolloutTree) -> Sequence[ProbeStep]:
        """Every exchange that took place, later turns after earlier ones."""
        steps = {
            id(node): ProbeStep(node) for node in tree.nodes() if node.valid and node.probe_tokens
        }
        for step in steps.values():
            step.following = [steps[id(c)] for c in step.node.children if id(c) in steps]
        return list(steps.values())

    def prepare(self, steps: Sequence[ProbeStep]) -> Sequence[Trajectory]:
        """Give each token its value under the tester that spoke, its advantage and its return."""
        self._add_values(steps)
        lam = self.config.lam if self.config.advantage == "gae" else 1.0
        for step in reversed(steps):
            add_advantages(step, self.config.gamma, lam)
        scaled = [step.advantages for step in steps]
        if self.config.normalize and len(steps) > 1:
            scaled = whiten_rows(scaled, self.config.epsilon)
        return [
            step.node.trajectory(
                advantages=on_tokens(step.node, advantages),
                returns=on_tokens(
                    step.node, [a + v for a, v in zip(step.advantages, step.values, strict=True)]
                ),
                old_values=on_tokens(step.node, step.values),
            )
            for step, advantages in zip(steps, scaled, strict=True)
        ]

    @torch.no_grad()
    def _add_values(self, steps: Sequence[ProbeStep]) -> None:
        for start in range(0, len(steps), _ROWS):
            some = steps[start : start + _ROWS]
            batch = rows([step.node.trajectory() for step in some])
            _, extras = self.system.log_probs(batch, ("values",))
            for step, values in zip(some, extras["values"].tolist(), strict=True):
                first = len(step.node.prompt_tokens)
                step.values = values[first : first + len(step.node.probe_tokens)]

    @property
    def _terms(self) -> dict[str, Any]:
        return {**super()._terms, "value": dict(self.config.value)}


def add_advantages(step: ProbeStep, gamma: float, lam: float) -> None:
    """Fill in the advantages of a probe's tokens; those that followed have theirs."""
    values = torch.tensor([step.values], dtype=torch.float64)
    rewards = torch.zeros_like(values)
    rewards[0, -1] = step.node.reward
    if step.following:
        # What comes after the last token is the mean over the ways on: g (V' + lambda A').
        ahead = fmean(later.values[0] + lam * later.advantages[0] for later in step.following)
        rewards[0, -1] += gamma * ahead
    step.advantages = gae(rewards, values, 1.0, lam)[0].tolist()


def whiten_rows(advantages: Sequence[Sequence[float]], epsilon: float) -> list[list[float]]:
    """Advantages with mean 0 and deviation 1 over all tokens."""
    each = torch.tensor([a for row in advantages for a in row], dtype=torch.float64)
    scaled = whiten(each, torch.ones_like(each, dtype=torch.bool), epsilon)
    return [row.tolist() for row in scaled.split([len(row) for row in advantages])]
