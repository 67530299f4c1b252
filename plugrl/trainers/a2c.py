"""``a2c``: advantage actor-critic, one step of the optimizer for each short batch.

With ``pi`` the policy, ``V`` the value head and ``c``, ``e`` the weights of value loss and entropy
bonus, an iteration is::

    collect rl.frames_per_batch steps with pi                                 (TensorDictRlTrainer)
    advantage A and value target R = A + V of each step                       (GeneralisedAdvantage)
    pg_loss = -mean(log pi(action) A)
    v_loss  = mean distance(V, R)
    loss    = pg_loss + c v_loss - e entropy                                  (A2cLoss)
    clip the norm of the gradient to rl.max_grad_norm; one optimizer step     (Learner.learn)

The loss supposes that the rows were collected with the present policy, which holds for one pass
over a batch in one minibatch: the defaults of :class:`OnPolicyRlConfig`.

Source: Mnih et al., arXiv 1602.01783, section 4, in its synchronous form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT, OnPolicyRlConfig
from plugrl.trainers.critics import DISTANCES, Distance

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.agent import Agent


@dataclass
class A2cConfig:
    """The loss of the advantage actor-critic."""

    critic_coef: float = described(0.5, "weight of the value loss", at_least=0, at_most=1000)
    entropy_eps: float = described(0.0, "weight of the entropy bonus", at_least=0, at_most=1000)
    normalize_advantage: bool = described(False, "scale advantages within each minibatch")


class A2cLoss(nn.Module):
    """Maps the rows of a minibatch to losses, which are added up, and metrics, all scalars.

    Reads ``observation``, ``action``, ``advantage`` and ``value_target``.

    Args:
        agent: the networks.
        critic_coef: weight of the value loss.
        entropy_eps: weight of the entropy bonus.
        normalize_advantage: whether advantages are scaled to mean 0, deviation 1 in each minibatch.
        loss_critic_type: distance of values from their targets: ``l2``, ``smooth_l1`` or ``l1``.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        critic_coef: float = 0.5,
        entropy_eps: float = 0.0,
        normalize_advantage: bool = False,
        loss_critic_type: Distance = "l2",
    ) -> None:
        super().__init__()
        self.agent = agent
        self.critic_coef, self.entropy_eps = critic_coef, entropy_eps
        self.normalize_advantage = normalize_advantage
        self.distance = DISTANCES[loss_critic_type]

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``."""
        parameters, value = self.agent.policy_and_value(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        advantage = td["advantage"].reshape(log_prob.shape)
        if self.normalize_advantage and advantage.numel() > 1:
            std, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (std + 1e-8)

        pg_loss = -(log_prob * advantage).mean()
        v_loss = self.distance(value, td["value_target"].reshape(value.shape))
        mean_entropy = entropy.mean()
        losses = {
            "loss_objective": pg_loss,
            "loss_critic": v_loss * self.critic_coef,
            "entropy": mean_entropy.detach(),
        }
        if self.entropy_eps:
            losses["loss_entropy"] = mean_entropy * -self.entropy_eps
        return losses


class A2cTrainer(TensorDictRlTrainer):
    """A2C, the synchronous form of A3C (Mnih et al., 1602.01783)."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OnPolicyRlConfig,
        "a2c": A2cConfig,
    }

    def _get_loss_module_and_gae(self) -> tuple[nn.Module, Any]:
        rl, a2c = self.hyper_params.rl, self.hyper_params.a2c
        loss = A2cLoss(
            self.agent,
            critic_coef=a2c.critic_coef,
            entropy_eps=a2c.entropy_eps,
            normalize_advantage=a2c.normalize_advantage,
            loss_critic_type=rl.loss_critic_type,
        )
        return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)
