"""GRPO on a service that has losses by name, on one page (DeepSeekMath, arXiv 2402.03300).

A step, from top to bottom:

1. The rollouts of a step are trajectories, several to each prompt. ``_prepare_trajectories`` gives
   each its advantage over its group, A = (r - mean(r)) / (std(r) + epsilon), by the function
   :func:`plugrl.trainers.self_hosted_grpo.grpo`, or by what ``algorithm.advantage`` names.
2. For each optimizer step, :class:`RemoteApiTrainer` sends tokens, mask, log-probabilities of the
   sampler and advantages, which hold the weight of each token in the mean.
3. The service takes the gradient of ``algorithm.loss_fn``, with r = p / p_sampler::

       importance_sampling    -A r                                 by default
       ppo                    -min(A r, A clip(r, low, high))      the clipped objective

   and steps AdamW.

A copy of this file is an algorithm of your own: name it as ``trainer.custom_trainer_module_path``.
"""

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
        # Calls `grpo`, or what algorithm.advantage names, on a batch made of the trajectories.
        trajectories = self._compute_advantage(trajectories)
        if trajectories:
            metrics |= signal_metrics(torch.tensor([t.advantage or 0.0 for t in trajectories]))
        return trajectories
