"""``vanilla_ppo``: proximal policy optimisation, each policy on its own steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.objectives.ppo import PpoObjective


@dataclass
class PpoConfig:
    """The loss of proximal policy optimisation."""

    loss_type: Literal["clip", "kl_penalty"] = described("clip", "how far a step may go")
    clip_epsilon: float = described(0.2, "clip: bound of the probability ratio around 1")
    kl_target: float = described(0.01, "kl_penalty: divergence that is aimed at")
    kl_beta: float = described(1.0, "kl_penalty: first weight of the divergence")
    kl_decrement: float = described(0.5, "kl_penalty: factor of the weight below two thirds of it")
    kl_increment: float = described(
        2.0, "kl_penalty: factor of the weight above one and a half of it"
    )
    critic_coef: float = described(0.5, "weight of the value loss")
    entropy_eps: float = described(0.0, "weight of the entropy bonus")
    normalize_advantage: bool = described(True, "scale advantages within each minibatch")
    implementation: Literal["plugrl", "torchrl"] = described(
        "plugrl", "whose loss module; that of TorchRL gives the same numbers, slower"
    )

    def __post_init__(self) -> None:
        if not 0 < self.clip_epsilon < 1:
            raise ConfigError("clip_epsilon must be between 0 and 1")
        if not self.kl_target > 0:
            raise ConfigError("kl_target must be more than 0")
        if not 0 < self.kl_decrement <= 1 <= self.kl_increment:
            raise ConfigError("kl_decrement must be in (0, 1] and kl_increment at least 1")
        for name in ("kl_beta", "critic_coef", "entropy_eps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


class VanillaPpoTrainer(TensorDictRlTrainer):
    """PPO with a clipped ratio or a penalty on the divergence (Schulman et al., 1707.06347)."""

    sections: ClassVar[Mapping[str, Any]] = {**TENSORDICT, "ppo": PpoConfig}
    loss_reads_next: ClassVar[bool] = False

    @property
    def clip_value(self) -> float | None:
        """How far a value may move from the collected one; None without ``rl.clip_value``."""
        return self.hyper_params.ppo.clip_epsilon if self.hyper_params.rl.clip_value else None

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        if self.hyper_params.ppo.implementation == "torchrl":
            return self._torchrl_loss_and_gae()
        rl, ppo = self.hyper_params.rl, self.hyper_params.ppo
        loss = PpoObjective(
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
        )
        return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)

    def _torchrl_loss_and_gae(self) -> tuple[torch.nn.Module, Any]:
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
        loss: torch.nn.Module
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
