"""``td3``: deterministic policy gradients with twin critics and a policy that moves later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.collect.exploration import Explorer, GaussianNoise
from plugrl.core.tensordict.learn.off_policy_learner import OffPolicyLearner
from plugrl.core.tensordict.off_policy import OffPolicyRlConfig
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.actor_critic import ContinuousTrainer, TwinCriticsConfig
from plugrl.trainers.objectives.td3 import Td3Loss


@dataclass
class Td3Config(TwinCriticsConfig):
    """Twin delayed deterministic policy gradients."""

    policy_delay: int = described(2, "updates of the critics for one of policy and targets")
    action_noise: float = described(
        0.1, "deviation of the noise of collected actions, in units of half their range"
    )
    target_policy_noise: float = described(0.2, "deviation of the noise of target actions")
    target_noise_clip: float = described(0.5, "bound of the noise of target actions")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy_delay < 1:
            raise ConfigError("policy_delay must be at least 1")
        for name in ("action_noise", "target_policy_noise", "target_noise_clip"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


class Td3Trainer(ContinuousTrainer):
    """Twin delayed DDPG (arXiv 1802.09477)."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OffPolicyRlConfig,
        "td3": Td3Config,
    }
    section: ClassVar[str] = "td3"
    #: Updates begin within the few steps of the kit.
    conformance: ClassVar[Mapping[str, Any]] = {
        **ContinuousTrainer.conformance,
        "td3": {"learning_starts": 16},
    }
    squash_actions: ClassVar[Any] = "deterministic"

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, td3 = self.hyper_params.rl, self.algorithm
        loss = Td3Loss(
            self.agent,
            self._critics(),
            gamma=rl.gamma,
            tau=td3.tau,
            target_policy_noise=td3.target_policy_noise,
            target_noise_clip=td3.target_noise_clip,
            distance=rl.loss_critic_type,
            generator=self._generator("loss", self.device),
        )
        return loss, None

    def _explorer(self, actor: Any, distribution: Any, rng: np.random.Generator) -> Explorer:
        td3 = self.algorithm
        return GaussianNoise(
            actor, distribution, rng, td3.learning_starts, deviation=td3.action_noise
        )

    def _update(self, learner: OffPolicyLearner, minibatch: Any, not_finite: Any) -> None:
        loss = learner.loss_module
        assert isinstance(loss, Td3Loss)
        if (learner.updates + 1) % self.algorithm.policy_delay:
            learner.update(loss.critic_losses(minibatch), not_finite, policy=False)
            return
        learner.update(loss(minibatch), not_finite)
        loss.update_targets()
