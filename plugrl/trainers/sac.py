"""``sac``: soft actor-critic, which earns reward while it acts as randomly as it may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.off_policy import OffPolicyRlConfig
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.actor_critic import ContinuousTrainer, TwinCriticsConfig
from plugrl.trainers.objectives.sac import SacLoss


@dataclass
class SacConfig(TwinCriticsConfig):
    """Soft actor-critic."""

    alpha: float = described(
        1.0, "temperature, the weight of the entropy; with auto_alpha at first"
    )
    auto_alpha: bool = described(True, "let the temperature keep the entropy near target_entropy")
    target_entropy: float | None = described(
        None, "in nats, of actions scaled to -1 to 1; null: minus the numbers of an action"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha > 0:
            raise ConfigError("alpha must be more than 0")
        if self.target_entropy is not None and not self.auto_alpha:
            raise ConfigError("target_entropy has no effect without auto_alpha; leave it out")


class SacTrainer(ContinuousTrainer):
    """Soft actor-critic with twin critics and automatic temperature (arXiv 1812.05905)."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OffPolicyRlConfig,
        "sac": SacConfig,
    }
    section: ClassVar[str] = "sac"
    #: Updates begin within the few steps of the kit.
    conformance: ClassVar[Mapping[str, Any]] = {
        **ContinuousTrainer.conformance,
        "sac": {"learning_starts": 16},
    }
    squash_actions: ClassVar[Any] = True

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, sac = self.hyper_params.rl, self.algorithm
        loss = SacLoss(
            self.agent,
            self._critics(),
            gamma=rl.gamma,
            tau=sac.tau,
            alpha=sac.alpha,
            target_entropy=self._target_entropy() if sac.auto_alpha else None,
            distance=rl.loss_critic_type,
            generator=self._generator("loss", self.device),
        )
        return loss, None

    def _target_entropy(self) -> float:
        distribution, wanted = self._bounded(), self.algorithm.target_entropy
        # Densities are those of actions in the units of the environment.
        return (-distribution.size if wanted is None else wanted) + distribution.log_scale
