"""``a2c``: advantage actor-critic, one step of the optimizer for each short batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.objectives.a2c import A2cObjective
from plugrl.trainers.on_policy import OnPolicyRlConfig


@dataclass
class A2cConfig:
    """The loss of the advantage actor-critic."""

    critic_coef: float = described(0.5, "weight of the value loss")
    entropy_eps: float = described(0.0, "weight of the entropy bonus")
    normalize_advantage: bool = described(False, "scale advantages within each minibatch")

    def __post_init__(self) -> None:
        for name in ("critic_coef", "entropy_eps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


class A2cTrainer(TensorDictRlTrainer):
    """A2C, the synchronous form of A3C (Mnih et al., 1602.01783)."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OnPolicyRlConfig,
        "a2c": A2cConfig,
    }

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, a2c = self.hyper_params.rl, self.hyper_params.a2c
        loss = A2cObjective(
            self.agent,
            critic_coef=a2c.critic_coef,
            entropy_eps=a2c.entropy_eps,
            normalize_advantage=a2c.normalize_advantage,
            loss_critic_type=rl.loss_critic_type,
        )
        return loss, GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)
