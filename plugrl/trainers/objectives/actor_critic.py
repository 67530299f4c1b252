"""What the losses of policies with a value head share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from plugrl.trainers.objectives.values import DISTANCES, Distance

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.agents import Agent


class ActorCriticObjective(nn.Module):
    """Maps the rows of a minibatch to losses and metrics, all scalars.

    Names that begin with ``loss_`` are added up and differentiated; the others are metrics and
    carry no gradient.

    Args:
        agent: the networks.
        critic_coef: weight of the value loss.
        entropy_eps: weight of the entropy bonus.
        normalize_advantage: whether advantages are scaled to mean 0, deviation 1 in each minibatch.
        loss_critic_type: distance of values from their targets: ``l2``, ``smooth_l1`` or ``l1``.
        clip_value: how far a value may move from the collected one before it counts as if it had
            moved just so far, where that makes the loss larger. None: any distance.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        critic_coef: float = 0.5,
        entropy_eps: float = 0.0,
        normalize_advantage: bool = False,
        loss_critic_type: Distance = "l2",
        clip_value: float | None = None,
    ) -> None:
        super().__init__()
        self.agent = agent
        self.critic_coef = critic_coef
        self.entropy_eps = entropy_eps
        self.normalize_advantage = normalize_advantage
        self.clip_value = clip_value
        self.loss_critic_type = loss_critic_type
        self._distance = DISTANCES[loss_critic_type]

    @abstractmethod
    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``."""

    def _advantage(self, td: TensorDictBase, like: torch.Tensor) -> torch.Tensor:
        advantage: torch.Tensor = td["advantage"].reshape(like.shape)
        if self.normalize_advantage and advantage.numel() > 1:
            deviation, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (deviation + 1e-8)
        return advantage

    def _critic_loss(self, value: torch.Tensor, td: TensorDictBase) -> torch.Tensor:
        """Weighted distance of the values of the rows from their targets."""
        target = td["value_target"].reshape(value.shape)
        if self.clip_value is None:
            return self._distance(value, target) * self.critic_coef
        collected = td["state_value"].reshape(value.shape)
        v_clipped = collected + torch.clamp(value - collected, -self.clip_value, self.clip_value)
        loss = torch.max(
            self._distance(value, target, reduction="none"),
            self._distance(v_clipped, target, reduction="none"),
        )
        return loss.mean() * self.critic_coef

    def _entropy_terms(self, entropy: torch.Tensor) -> dict[str, torch.Tensor]:
        mean = entropy.mean()
        terms: dict[str, Any] = {"entropy": mean.detach()}
        if self.entropy_eps:
            terms["loss_entropy"] = mean * -self.entropy_eps
        return terms
