"""Soft actor-critic with twin critics and a temperature that keeps the entropy near a target.

With ``pi`` the policy, ``Q1, Q2`` the critics, a prime for target networks, ``alpha`` the
temperature and ``H`` the entropy that is aimed at, for each step::

    next action ~ pi(next observation)                                  (the reward alone if the
    target      = reward + gamma (min_i Qi'(next observation, next action)       step terminated)
                                  - alpha log pi(next action))
    loss_qvalue = sum_i mean distance(Qi(observation, action), target)
    loss_actor  = mean(alpha log pi(a) - min_i Qi(observation, a))      a ~ pi(observation)
    loss_alpha  = -log alpha mean(log pi(a) + H)

The three are differentiated at the same weights. Densities are those of actions in the units of
the environment.

Sources: Haarnoja et al. (2018), arXiv 1801.01290 and 1812.05905.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from plugrl.trainers.objectives.values import (
    Critics,
    Distance,
    bootstrapped,
    follow,
    value_loss,
)

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.tensordict.agents.agents import Agent


class SacLoss(nn.Module):
    """The losses of a stochastic policy, its critics and the temperature.

    Args:
        agent: its actions are squashed into their bounds, and can be differentiated.
        critics: two networks.
        gamma: discount factor.
        tau: the part of their way that target networks move in :meth:`update_targets`.
        alpha: the temperature at first.
        target_entropy: ``H`` above; None: the temperature stays as it is.
        distance: of a value from its target.
        generator: draws actions.
    """

    def __init__(
        self,
        agent: Agent,
        critics: Critics,
        *,
        gamma: float = 0.99,
        tau: float = 0.005,
        alpha: float = 1.0,
        target_entropy: float | None = None,
        distance: Distance = "l2",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.agent, self.critics = agent, critics
        self.target_critics = copy.deepcopy(critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(
            torch.tensor(math.log(alpha)), requires_grad=target_entropy is not None
        )
        self.gamma, self.tau, self.distance = gamma, tau, distance
        self.target_entropy = target_entropy
        self.generator = generator

    def forward(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """The losses, and ``qvalue``, ``alpha`` and ``entropy``, of steps ``[B]``."""
        observation = td["observation"]
        seen = self.agent.encode(observation)
        alpha = self.log_alpha.detach().exp()
        values = self.critics(seen, td["action"])
        loss_qvalue = value_loss(values, self._target(td, alpha), self.distance)
        action, log_prob = self._drawn(observation)
        best = self.critics(seen, action, frozen=True).amin(0)
        entropy = -log_prob.detach().mean()
        losses = {
            "loss_qvalue": loss_qvalue,
            "loss_actor": (alpha * log_prob - best).mean(),
            "qvalue": values.detach().mean(),
            "alpha": alpha,
            "entropy": entropy,
        }
        if self.target_entropy is not None:
            losses["loss_alpha"] = self.log_alpha * (entropy - self.target_entropy)
        return losses

    def _drawn(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        params = self.agent.policy(observation)
        return self.agent.distribution.rsample(params, self.generator)

    @torch.no_grad()
    def _target(self, td: TensorDict, alpha: torch.Tensor) -> torch.Tensor:
        following = td["next", "observation"]
        action, log_prob = self._drawn(following)
        values = self.target_critics(self.agent.encode(following), action).amin(0)
        return bootstrapped(td, values - alpha * log_prob, self.gamma)

    def update_targets(self) -> None:
        """Move the target critics towards the trained ones."""
        follow(self.target_critics.parameters(), self.critics.parameters(), self.tau)
