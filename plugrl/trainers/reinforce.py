"""``reinforce``: each action is made likelier by what came after it.

With ``pi`` the policy and ``gamma`` the discount, an iteration is::

    collect rl.frames_per_batch steps with pi                                 (TensorDictRlTrainer)
    W = reward to go: r_t + gamma r_(t+1) + ... to the end of the episode     (RewardToGo)
    pg_loss = -mean(log pi(action) W)
    loss    = pg_loss - e entropy                                             (ReinforceLoss)
    clip the norm of the gradient to rl.max_grad_norm; one optimizer step     (Learner.learn)

With ``reinforce.use_advantage_and_critic``, ``W`` is the advantage over a value head, which learns
beside it: ``loss += c mean distance(V, R)``.

Source: Williams (1992), https://doi.org/10.1007/BF00992696.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage, RewardToGo
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT, OnPolicyRlConfig
from plugrl.trainers.critics import DISTANCES, Distance

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.agents.agent import Agent

#: Settings of ``rl`` that only a value head reads.
_VALUE_HEAD_OPTIONS = ("lmbda", "loss_critic_type", "use_shared_body")


@dataclass
class ReinforceConfig:
    """The loss of REINFORCE."""

    use_advantage_and_critic: bool = described(
        False, "weigh actions by their advantage over a value head; else by the reward to go"
    )
    normalize_advantage: bool = described(True, "scale these weights within each minibatch")
    critic_coef: float = described(
        0.5, "weight of the value loss, if there is a value head", at_least=0, at_most=1000
    )
    entropy_eps: float = described(0.0, "weight of the entropy bonus", at_least=0, at_most=1000)


class ReinforceLoss(nn.Module):
    """Maps the rows of a minibatch to losses, which are added up, and metrics, all scalars.

    Reads ``observation``, ``action``, ``advantage`` (without ``critic`` that is the reward to go)
    and, with ``critic``, ``value_target``.

    Args:
        agent: the networks.
        critic: whether the value head learns.
        critic_coef: weight of the value loss.
        entropy_eps: weight of the entropy bonus.
        normalize_advantage: whether weights are scaled to mean 0, deviation 1 in each minibatch.
        loss_critic_type: distance of values from their targets: ``l2``, ``smooth_l1`` or ``l1``.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        critic: bool = False,
        critic_coef: float = 0.5,
        entropy_eps: float = 0.0,
        normalize_advantage: bool = False,
        loss_critic_type: Distance = "l2",
    ) -> None:
        super().__init__()
        self.agent, self.critic = agent, critic
        self.critic_coef, self.entropy_eps = critic_coef, entropy_eps
        self.normalize_advantage = normalize_advantage
        self.distance = DISTANCES[loss_critic_type]

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``."""
        losses = {}
        if self.critic:
            parameters, value = self.agent.policy_and_value(td["observation"])
            v_loss = self.distance(value, td["value_target"].reshape(value.shape))
            losses["loss_critic"] = v_loss * self.critic_coef
        else:
            parameters = self.agent.policy(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        weight = td["advantage"].reshape(log_prob.shape)
        if self.normalize_advantage and weight.numel() > 1:
            # The mean is a baseline: without one, positive rewards make every action likelier.
            std, mean = torch.std_mean(weight)
            weight = (weight - mean) / (std + 1e-8)

        losses["loss_objective"] = -(log_prob * weight).mean()
        mean_entropy = entropy.mean()
        losses["entropy"] = mean_entropy.detach()
        if self.entropy_eps:
            losses["loss_entropy"] = mean_entropy * -self.entropy_eps
        return losses


class ReinforceTrainer(TensorDictRlTrainer):
    """REINFORCE (Williams, 1992) with rewards to go, or with advantages over a value head."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OnPolicyRlConfig,
        "reinforce": ReinforceConfig,
    }

    @classmethod
    def preflight(cls, check: Preflight) -> list[Finding]:
        """Besides those of the base: settings of a value head that there is not."""
        findings = [*super().preflight(check)]
        reinforce = check.root.reinforce
        if reinforce.use_advantage_and_critic:
            return findings
        defaults = OnPolicyRlConfig()
        unread = [
            f"rl.{n}" for n in _VALUE_HEAD_OPTIONS if check.root.rl[n] != getattr(defaults, n)
        ]
        if reinforce.critic_coef != ReinforceConfig().critic_coef:
            unread.append("reinforce.critic_coef")
        remedy = "set it to true, or remove this"
        return findings + [
            (path, f"has no effect without reinforce.use_advantage_and_critic; {remedy}")
            for path in unread
        ]

    @property
    def use_critic(self) -> bool:  # type: ignore[override]
        """Whether agents have a value head."""
        return bool(self.hyper_params.reinforce.use_advantage_and_critic)

    def _get_loss_module_and_gae(self) -> tuple[nn.Module, Any]:
        rl, reinforce = self.hyper_params.rl, self.hyper_params.reinforce
        loss = ReinforceLoss(
            self.agent,
            critic=self.use_critic,
            critic_coef=reinforce.critic_coef,
            entropy_eps=reinforce.entropy_eps,
            normalize_advantage=reinforce.normalize_advantage,
            loss_critic_type=rl.loss_critic_type,
        )
        if self.use_critic:
            return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)
        return loss, RewardToGo(rl.gamma)
