"""Deep Q-learning.

With ``Q`` the trained and ``Q'`` the target network, for each step::

    target = reward + gamma max_a Q'(next observation, a)                       (nothing but the
    target = reward + gamma Q'(next observation, argmax_a Q(next observation, a))   reward if the
    loss   = mean distance(Q(observation, action), target)                      step terminated)

The second target is that of double Q-learning.

Sources: Mnih et al. (2015), Human-level control through deep reinforcement learning; van Hasselt
et al. (2015), arXiv 1509.06461.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from plugrl.trainers.objectives.values import Distance, bootstrapped, follow, value_loss

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.tensordict.agents.agents import Agent


class DqnLoss(nn.Module):
    """The loss of an agent whose policy head gives the value of each discrete action.

    Args:
        agent: ``agent.policy(observation)`` gives ``[B, actions]``.
        gamma: discount factor.
        double: choose the next action with the trained network.
        distance: of a value from its target.
        tau: the part of its way that the target network moves in :meth:`update_targets`.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        gamma: float = 0.99,
        double: bool = False,
        distance: Distance = "smooth_l1",
        tau: float = 1.0,
    ) -> None:
        super().__init__()
        self.agent = agent
        self.target = copy.deepcopy(agent).requires_grad_(False)
        self._first = int(getattr(agent.distribution, "start", 0))
        # ``nn.Module`` has a method called double.
        self.gamma, self.is_double, self.distance, self.tau = gamma, double, distance, tau

    def forward(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """``loss_qvalue`` and the mean ``qvalue`` of steps ``[B]`` with discrete actions."""
        values = self.agent.policy(td["observation"])
        index = td["action"].long().view(-1, 1) - self._first
        taken = values.gather(-1, index).squeeze(-1)
        loss = value_loss(taken, self._target(td), self.distance)
        return {"loss_qvalue": loss, "qvalue": taken.detach().mean()}

    @torch.no_grad()
    def _target(self, td: TensorDict) -> torch.Tensor:
        following = td["next", "observation"]
        values = self.target.policy(following)
        if self.is_double:
            best = self.agent.policy(following).argmax(-1, keepdim=True)
            return bootstrapped(td, values.gather(-1, best).squeeze(-1), self.gamma)
        return bootstrapped(td, values.amax(-1), self.gamma)

    def update_targets(self) -> None:
        """Move the target network towards the trained one."""
        follow(self.target.parameters(), self.agent.parameters(), self.tau)
