"""``reinforce``: each action is made likelier by what came after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage, RewardToGo
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.objectives.reinforce import ReinforceObjective
from plugrl.trainers.on_policy import OnPolicyRlConfig

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

#: Settings of ``rl`` that only a value head reads.
_OF_CRITICS = ("lmbda", "loss_critic_type", "use_shared_body")


@dataclass
class ReinforceConfig:
    """The loss of REINFORCE."""

    use_advantage_and_critic: bool = described(
        False, "weigh actions by their advantage over a value head; else by the reward to go"
    )
    normalize_advantage: bool = described(True, "scale these weights within each minibatch")
    critic_coef: float = described(0.5, "weight of the value loss, if there is a value head")
    entropy_eps: float = described(0.0, "weight of the entropy bonus")

    def __post_init__(self) -> None:
        for name in ("critic_coef", "entropy_eps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


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
        unread = [f"rl.{n}" for n in _OF_CRITICS if check.root.rl[n] != getattr(defaults, n)]
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

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, reinforce = self.hyper_params.rl, self.hyper_params.reinforce
        loss = ReinforceObjective(
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
