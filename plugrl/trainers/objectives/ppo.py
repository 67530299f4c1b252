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

from plugrl.trainers.objectives import ppo_in_numpy
from plugrl.trainers.objectives.actor_critic import ActorCriticObjective, valid_rows

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents import Agent

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
        """Losses and metrics of ``td [rows]``; with a penalty, beta is steered too.

        Raises:
            ValueError: no row is valid.
        """
        td = valid_rows(td)
        parameters, value = self.agent.policy_and_value(td["observation"])
        if self._in_numpy and ppo_in_numpy.suits(self.agent.distribution, parameters, value):
            return self._clipped_in_numpy(parameters, value, td)
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        log_ratio = log_prob - td["action_log_prob"].reshape(log_prob.shape)
        ratio = log_ratio.exp()
        loss = self._clipped if self.loss_type == "clip" else self._penalised
        return {
            "loss_objective": loss(ratio, log_ratio, self._advantage(td, log_prob)),
            "loss_critic": self._critic_loss(value, td),
            **self._entropy_terms(entropy),
            **self._metrics(ratio.detach(), log_ratio.detach()),
        }

    @property
    def _in_numpy(self) -> bool:
        return self.loss_type == "clip" and self.loss_critic_type == "l2"

    def _clipped_in_numpy(
        self, parameters: torch.Tensor, value: torch.Tensor, td: TensorDictBase
    ) -> dict[str, torch.Tensor]:
        options = ppo_in_numpy.ClippedOptions(
            clip_epsilon=self.clip_epsilon,
            critic_coef=self.critic_coef,
            entropy_eps=self.entropy_eps,
            normalize_advantage=self.normalize_advantage,
            clip_value=self.clip_value,
        )
        distribution = self.agent.distribution
        losses, metrics = ppo_in_numpy.clipped_losses(distribution, parameters, value, td, options)
        if not self.entropy_eps:
            del losses["loss_entropy"]
        fraction = torch.tensor(metrics.pop("clip_fraction"))
        own = {name: parameters.new_tensor(number) for name, number in metrics.items()}
        return {**losses, **own, "clip_fraction": fraction}

    def _clipped(
        self, ratio: torch.Tensor, log_ratio: torch.Tensor, advantage: torch.Tensor
    ) -> torch.Tensor:
        # -min(r A, clip(r) A) in few operations: the clipped term is never below -A - epsilon |A|
        # and, where it is above that, equal to -r A.
        cost = -advantage
        floor = torch.sub(cost, advantage.abs(), alpha=self.clip_epsilon)
        return torch.maximum(ratio * cost, floor).mean()

    def _penalised(
        self, ratio: torch.Tensor, log_ratio: torch.Tensor, advantage: torch.Tensor
    ) -> torch.Tensor:
        divergence = (ratio - 1 - log_ratio).mean()
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
    def _metrics(self, ratio: torch.Tensor, log_ratio: torch.Tensor) -> dict[str, torch.Tensor]:
        excess = ratio - 1
        metrics = {"kl": (excess - log_ratio).mean()}
        if self.loss_type == "clip":
            outside = excess.abs() > self.clip_epsilon
            metrics["clip_fraction"] = outside.count_nonzero() / outside.numel()
        else:
            metrics["kl_beta"] = self.beta.clone()
        return metrics
