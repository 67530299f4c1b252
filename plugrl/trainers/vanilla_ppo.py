"""``vanilla_ppo``: proximal policy optimisation, each policy on its own steps.

With ``pi`` the policy as it is, ``pi_old`` the one that collected the batch, ``V`` the value head
and ``c``, ``e`` the weights of value loss and entropy bonus, an iteration is::

    collect rl.frames_per_batch steps with pi_old                             (TensorDictRlTrainer)
    advantage A and value target R = A + V_old of each step                   (GeneralisedAdvantage)
    for each of rl.num_epochs epochs, for each minibatch of shuffled steps:   (Learner.learn)
        logratio = log pi(action) - log pi_old(action);  ratio = exp(logratio)
        pg_loss  = mean max(-A ratio, -A clip(ratio, 1 - epsilon, 1 + epsilon))
        v_loss   = mean distance(V, R)
        loss     = pg_loss + c v_loss - e entropy                             (PpoLoss)
        clip the norm of the gradient to rl.max_grad_norm; one optimizer step

``ppo.loss_type: kl_penalty`` is the paper's equation 8 in the place of 7: no clip, but the mean of
``-A ratio`` and ``beta KL(pi_old, pi)``, where beta is steered so that the divergence stays near
its target.

To change the algorithm, copy this file, change :class:`PpoLoss`, and name the copy as
``trainer.custom_trainer_module_path``.

Sources: Schulman et al., arXiv 1707.06347; for advantages, Schulman et al., arXiv 1506.02438.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.estimators import clipped_surrogate, clipped_value_loss
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.critics import DISTANCES, Distance

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.agent import Agent
    from plugrl.core.tensordict.learn.learner import Learner


@dataclass
class PpoConfig:
    """The loss of proximal policy optimisation."""

    loss_type: Literal["clip", "kl_penalty"] = described("clip", "how far a step may go")
    clip_epsilon: float = described(
        0.2, "clip: bound of the probability ratio around 1", above=0, below=1
    )
    anneal_clip: bool = described(
        False, "clip: let the clip range fall to 0 in a straight line, with rl.clip_value also its"
    )
    kl_target: float = described(
        0.01, "kl_penalty: divergence that is aimed at", above=0, at_most=1000
    )
    kl_beta: float = described(
        1.0, "kl_penalty: first weight of the divergence", at_least=0, at_most=1e6
    )
    kl_decrement: float = described(
        0.5, "kl_penalty: factor of the weight below two thirds of it", above=0, at_most=1
    )
    kl_increment: float = described(
        2.0, "kl_penalty: factor of the weight above one and a half of it", at_least=1, at_most=1000
    )
    critic_coef: float = described(0.5, "weight of the value loss", at_least=0, at_most=1000)
    entropy_eps: float = described(0.0, "weight of the entropy bonus", at_least=0, at_most=1000)
    normalize_advantage: bool = described(True, "scale advantages within each minibatch")
    implementation: Literal["plugrl", "torchrl"] = described(
        "plugrl", "whose loss module; that of TorchRL gives the same numbers, slower"
    )

    def __post_init__(self) -> None:
        if self.anneal_clip and self.loss_type != "clip":
            raise ConfigError(
                f"anneal_clip has no effect on loss_type {self.loss_type}, which clips nothing; "
                "leave it out"
            )


class PpoLoss(nn.Module):
    """Maps the rows of a minibatch to losses, which are added up, and metrics, all scalars.

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
        critic_coef: weight of the value loss.
        entropy_eps: weight of the entropy bonus.
        normalize_advantage: whether advantages are scaled to mean 0, deviation 1 in each minibatch.
        loss_critic_type: distance of values from their targets: ``l2``, ``smooth_l1`` or ``l1``.
        clip_value: how far a value may move from the collected one before it counts as if it had
            moved just so far, where that makes the loss larger. None: any distance.
        anneal_clip: whether ``clip_epsilon`` and ``clip_value`` are tensors, which may be filled
            with another number: a compiled loss reads them, and has numbers built in.
    """

    beta: torch.Tensor
    #: Numbers, or tensors of one.
    clip_epsilon: Any
    clip_value: Any

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
        critic_coef: float = 0.5,
        entropy_eps: float = 0.0,
        normalize_advantage: bool = False,
        loss_critic_type: Distance = "l2",
        clip_value: float | None = None,
        anneal_clip: bool = False,
    ) -> None:
        super().__init__()
        self.agent = agent
        self.loss_type = loss_type
        self.kl_target, self.kl_decrement, self.kl_increment = kl_target, kl_decrement, kl_increment
        self.register_buffer("beta", torch.tensor(kl_beta))
        self.critic_coef, self.entropy_eps = critic_coef, entropy_eps
        self.normalize_advantage = normalize_advantage
        self.distance = DISTANCES[loss_critic_type]
        for name, width in (("clip_epsilon", clip_epsilon), ("clip_value", clip_value)):
            if anneal_clip and width is not None:
                device = next(agent.parameters()).device
                self.register_buffer(name, torch.tensor(width, device=device), persistent=False)
            else:
                setattr(self, name, width)

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``; with a penalty, beta is steered too."""
        parameters, value = self.agent.policy_and_value(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        advantage = td["advantage"].reshape(log_prob.shape)
        if self.normalize_advantage and advantage.numel() > 1:
            # By minibatch, as most implementations do; the paper does not.
            std, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (std + 1e-8)

        # Policy loss. In the first minibatch of an iteration the ratio is 1 and this is A2C.
        logratio = log_prob - td["action_log_prob"].reshape(log_prob.shape)
        ratio = logratio.exp()
        if self.loss_type == "clip":
            # The larger of -A ratio and -A clip(ratio): there is nothing to gain beyond the clip,
            # but an action that became too likely, or too unlikely, can still be brought back.
            pg_loss, _ = clipped_surrogate(ratio, advantage, self.clip_epsilon, self.clip_epsilon)
            pg_loss = pg_loss.mean()
            metrics = self._clip_metrics(ratio, logratio)
        else:
            # r - 1 - log r estimates the divergence from the actions taken and is never negative.
            approx_kl = ((ratio - 1) - logratio).mean()
            pg_loss = self.beta.item() * approx_kl - (ratio * advantage).mean()
            if self.training:
                self._steer_beta(approx_kl.item())
            metrics = {"kl": approx_kl.detach(), "kl_beta": self.beta.clone()}

        # Value loss.
        value_target = td["value_target"].reshape(value.shape)
        if self.clip_value is None:
            v_loss = self.distance(value, value_target)
        else:
            old_value = td["state_value"].reshape(value.shape)
            distance = partial(self.distance, reduction="none")
            v_loss, _ = clipped_value_loss(
                value, old_value, value_target, self.clip_value, distance
            )
            v_loss = v_loss.mean()

        mean_entropy = entropy.mean()
        losses = {
            "loss_objective": pg_loss,
            "loss_critic": v_loss * self.critic_coef,
            "entropy": mean_entropy.detach(),
            **metrics,
        }
        if self.entropy_eps:
            losses["loss_entropy"] = mean_entropy * -self.entropy_eps
        return losses

    @torch.no_grad()
    def _clip_metrics(self, ratio: torch.Tensor, logratio: torch.Tensor) -> dict[str, torch.Tensor]:
        outside = (ratio - 1).abs() > self.clip_epsilon
        return {
            "kl": ((ratio - 1) - logratio).mean(),
            "clip_fraction": outside.count_nonzero() / outside.numel(),
        }

    def _steer_beta(self, approx_kl: float) -> None:
        if approx_kl > 1.5 * self.kl_target:
            self.beta *= self.kl_increment
        elif approx_kl < self.kl_target / 1.5:
            self.beta *= self.kl_decrement
        # Factors alone could reach 0 or infinity, from where they do not come back.
        self.beta.clamp_(1e-6, 1e6)


class VanillaPpoTrainer(TensorDictRlTrainer):
    """PPO with a clipped ratio or a penalty on the divergence (Schulman et al., 1707.06347)."""

    sections: ClassVar[Mapping[str, Any]] = {**TENSORDICT, "ppo": PpoConfig}
    #: Without what followed a step, which only advantages need, minibatches are cut quicker.
    loss_reads_next: ClassVar[bool] = False

    @classmethod
    def turns_fault(cls, params: Any) -> str | None:
        """TorchRL's advantages take what is next for what the action led to."""
        if params.ppo.implementation != "torchrl":
            return None
        return (
            "and GAE of TorchRL takes each step for its own agent's; set ppo.implementation: plugrl"
        )

    def _get_loss_module_and_gae(self) -> tuple[nn.Module, Any]:
        rl, ppo = self.hyper_params.rl, self.hyper_params.ppo
        if ppo.implementation == "torchrl":
            return self._torchrl_loss_and_gae()
        loss = PpoLoss(
            self.agent,
            loss_type=ppo.loss_type,
            clip_epsilon=ppo.clip_epsilon,
            kl_target=ppo.kl_target,
            kl_beta=ppo.kl_beta,
            kl_decrement=ppo.kl_decrement,
            kl_increment=ppo.kl_increment,
            critic_coef=ppo.critic_coef,
            entropy_eps=ppo.entropy_eps,
            normalize_advantage=ppo.normalize_advantage,
            loss_critic_type=rl.loss_critic_type,
            clip_value=self.clip_value,
            anneal_clip=ppo.anneal_clip,
        )
        return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)

    def _learns_in(self, iteration: int, learner: Learner) -> bool:
        """See the base class; the clip range is set then, too."""
        learns, loss = super()._learns_in(iteration, learner), learner.loss_module
        if learns and self.hyper_params.ppo.anneal_clip:
            factor = self._share_left(iteration)
            loss.clip_epsilon.fill_(self.hyper_params.ppo.clip_epsilon * factor)
            if self.clip_value is not None:
                loss.clip_value.fill_(self.clip_value * factor)
        return learns

    @property
    def clip_value(self) -> float | None:
        """How far a value may move from the collected one; None without ``rl.clip_value``."""
        return self.hyper_params.ppo.clip_epsilon if self.hyper_params.rl.clip_value else None

    def _torchrl_loss_and_gae(self) -> tuple[nn.Module, Any]:
        """The same algorithm with TorchRL's own loss module, to compare with or to start from."""
        from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss, ValueEstimators

        rl, ppo = self.hyper_params.rl, self.hyper_params.ppo
        common = {
            "entropy_bonus": ppo.entropy_eps > 0,
            "entropy_coeff": ppo.entropy_eps,
            "critic_coeff": ppo.critic_coef,
            "loss_critic_type": rl.loss_critic_type,
            "normalize_advantage": ppo.normalize_advantage,
            "functional": False,
        }
        operators = (self.policy_operator, self.value_operator)
        loss: nn.Module
        if ppo.loss_type == "clip":
            clipping = {"clip_epsilon": ppo.clip_epsilon, "clip_value": rl.clip_value}
            loss = ClipPPOLoss(*operators, **clipping, **common)
        else:
            loss = KLPENPPOLoss(
                *operators,
                dtarg=ppo.kl_target,
                beta=ppo.kl_beta,
                increment=ppo.kl_increment,
                decrement=ppo.kl_decrement,
                clip_value=self.clip_value,
                **common,
            )
        loss.make_value_estimator(ValueEstimators.GAE, gamma=rl.gamma, lmbda=rl.lmbda)
        return loss, loss.value_estimator
