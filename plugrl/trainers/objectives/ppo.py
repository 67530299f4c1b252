"""The losses of proximal policy optimisation (Schulman et al., arXiv 1707.06347).

With r the probability ratio of the action under the policy and under the one that took it, and A
its advantage: ``clip`` is equation 7, the mean of -min(r A, clip(r, 1 - epsilon, 1 + epsilon) A);
``kl_penalty`` is equation 8, the mean of -r A + beta KL, where beta is steered so that the
divergence KL of the new policy from the old one stays near its target. KL is estimated from the
actions taken by the mean of r - 1 - log r, which is never negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from plugrl.trainers.objectives.actor_critic import ActorCriticObjective

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.agents import Agent

#: Where beta is kept.
_BETAS = (1e-6, 1e6)


class PpoObjective(ActorCriticObjective):
    """Policy, value and entropy loss of PPO for the rows of a minibatch.

    Reads ``observation``, ``action``, ``action_log_prob``, ``advantage``, ``value_target`` and,
    with ``clip_value``, ``state_value``. The weight ``beta`` of the divergence is part of the
    state.

    Args:
        agent: the networks.
        loss_type: ``clip`` or ``kl_penalty``.
        clip_epsilon: bound of the ratio around 1.
        kl_target: ``kl_penalty``: divergence that beta is steered to.
        kl_beta: first value of beta.
        kl_decrement: factor of beta when the divergence is under two thirds of its target.
        kl_increment: factor of beta when the divergence is over one and a half of its target.
        options: as of :class:`ActorCriticObjective`.
    """

    beta: torch.Tensor

    def __init__(
        self,
        agent: Agent,
        *,
        loss_type: Literal["clip", "kl_penalty"] = "clip",
        clip_epsilon: float = 0.2,
        kl_target: float = 0.01,
        kl_beta: float = 1.0,
        kl_decrement: float = 0.5,
        kl_increment: float = 2.0,
        **options: Any,
    ) -> None:
        super().__init__(agent, **options)
        self.loss_type = loss_type
        self.clip_epsilon = clip_epsilon
        self.kl_target = kl_target
        self.kl_decrement = kl_decrement
        self.kl_increment = kl_increment
        self.register_buffer("beta", torch.tensor(kl_beta))

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``; with a penalty, beta is steered too."""
        parameters, value = self.agent.policy_and_value(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        logratio = log_prob - td["action_log_prob"].reshape(log_prob.shape)
        ratio = logratio.exp()
        loss = self._clipped if self.loss_type == "clip" else self._penalised
        return {
            "loss_objective": loss(ratio, logratio, self._advantage(td, log_prob)),
            "loss_critic": self._critic_loss(value, td),
            **self._entropy_terms(entropy),
            **self._metrics(ratio.detach(), logratio.detach()),
        }

    def _clipped(
        self, ratio: torch.Tensor, logratio: torch.Tensor, advantage: torch.Tensor
    ) -> torch.Tensor:
        clipped = torch.clamp(ratio, 1 - self.clip_epsilon, 1 + self.clip_epsilon)
        pg_loss1, pg_loss2 = -advantage * ratio, -advantage * clipped
        return torch.max(pg_loss1, pg_loss2).mean()

    def _penalised(
        self, ratio: torch.Tensor, logratio: torch.Tensor, advantage: torch.Tensor
    ) -> torch.Tensor:
        divergence = (ratio - 1 - logratio).mean()
        loss = self.beta.item() * divergence - (ratio * advantage).mean()
        if self.training:
            self._steer(divergence.item())
        return loss

    def _steer(self, divergence: float) -> None:
        if divergence > 1.5 * self.kl_target:
            self.beta *= self.kl_increment
        elif divergence < self.kl_target / 1.5:
            self.beta *= self.kl_decrement
        # Factors alone could reach 0 or infinity, from where they do not come back.
        self.beta.clamp_(*_BETAS)

    @torch.no_grad()
    def _metrics(self, ratio: torch.Tensor, logratio: torch.Tensor) -> dict[str, torch.Tensor]:
        excess = ratio - 1
        metrics = {"kl": (excess - logratio).mean()}
        if self.loss_type == "clip":
            outside = excess.abs() > self.clip_epsilon
            metrics["clip_fraction"] = outside.count_nonzero() / outside.numel()
        else:
            metrics["kl_beta"] = self.beta.clone()
        return metrics
