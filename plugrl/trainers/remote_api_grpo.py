"""Group Relative Policy Optimization on a service of named losses (arXiv 2402.03300)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from plugrl.core.text.learn.advantages import signal_metrics
from plugrl.core.text.remote_api import RemoteApiTrainer, RemoteApiTrainerConfig
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.kit import NAMED_LOSSES


class RemoteApiGrpoTrainer(RemoteApiTrainer):
    """Samples several answers to each prompt and reinforces those above the group's mean.

    Advantages equal those of ``self_hosted_grpo``. With the loss ``importance_sampling`` the
    gradient is that of the unclipped objective; ``ppo`` is the clipped one.
    """

    #: Named here, so that a key which it does not know is an error and not a free key.
    Config: ClassVar[type] = RemoteApiTrainerConfig
    learns_by_advantages: ClassVar[bool] = True
    #: For the conformance kit: a service that has losses by name.
    conformance: ClassVar[Mapping[str, Any]] = {"models": {"policy": NAMED_LOSSES}}

    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        trajectories = self._compute_advantage(trajectories)
        if trajectories:
            metrics |= signal_metrics(torch.tensor([t.advantage or 0.0 for t in trajectories]))
        return trajectories
