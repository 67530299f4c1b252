"""Twin delayed deterministic policy gradients.

With ``pi`` the policy, ``Q1, Q2`` the critics and a prime for target networks, for each step::

    next action = clip(pi'(next observation) + clip(s e, -c, c), low, high)      e: normal noise
    target      = reward + gamma min_i Qi'(next observation, next action)   (the reward alone if
    loss_qvalue = sum_i mean distance(Qi(observation, action), target)      the step terminated)
    loss_actor  = -mean Q1(observation, pi(observation))

``s`` and ``c`` are in units of half the range of an action.

Source: Fujimoto et al. (2018), arXiv 1802.09477.
"""

from __future__ import annotations

import copy
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


class Td3Loss(nn.Module):
    """The losses of a deterministic policy and its critics.

    Args:
        agent: its policy's mode is the action: ``agent.distribution.mode(agent.policy(...))``.
        critics: two networks.
        gamma: discount factor.
        tau: the part of their way that target networks move in :meth:`update_targets`.
        target_policy_noise: ``s`` above.
        target_noise_clip: ``c`` above.
        distance: of a value from its target.
        generator: draws the noise.
    """

    def __init__(
        self,
        agent: Agent,
        critics: Critics,
        *,
        gamma: float = 0.99,
        tau: float = 0.005,
        target_policy_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        distance: Distance = "l2",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.agent, self.critics = agent, critics
        self.target_agent = copy.deepcopy(agent).requires_grad_(False)
        self.target_critics = copy.deepcopy(critics).requires_grad_(False)
        self.gamma, self.tau, self.distance = gamma, tau, distance
        self.noise, self.noise_clip = target_policy_noise, target_noise_clip
        self.generator = generator

    def forward(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """Both losses, and the mean ``qvalue``, of steps ``[B]``."""
        return {**self.critic_losses(td), **self.actor_losses(td)}

    def critic_losses(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """``loss_qvalue`` and the mean ``qvalue``: all of an update in which the policy rests."""
        values = self.critics(self.agent.encode(td["observation"]), td["action"])
        loss = value_loss(values, self._target(td), self.distance)
        return {"loss_qvalue": loss, "qvalue": values.detach().mean()}

    def actor_losses(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """``loss_actor``, whose gradient reaches the policy alone."""
        observation = td["observation"]
        action = self.agent.distribution.mode(self.agent.policy(observation))
        seen = self.agent.encode(observation)
        return {"loss_actor": -self.critics(seen, action, frozen=True, count=1).mean()}

    @torch.no_grad()
    def _target(self, td: TensorDict) -> torch.Tensor:
        following = td["next", "observation"]
        action = self.agent.distribution.mode(self.target_agent.policy(following))
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        noise = (noise * self.noise).clamp_(-self.noise_clip, self.noise_clip)
        half = (1 / self.critics.scale).view(action.shape[1:])
        centre = self.critics.centre.view(action.shape[1:])
        action = torch.clamp(action + noise * half, centre - half, centre + half)
        values = self.target_critics(self.agent.encode(following), action)
        return bootstrapped(td, values.amin(0), self.gamma)

    def update_targets(self) -> None:
        """Move the target networks towards the trained ones."""
        follow(self.target_agent.parameters(), self.agent.parameters(), self.tau)
        follow(self.target_critics.parameters(), self.critics.parameters(), self.tau)
