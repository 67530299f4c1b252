"""Supervised training on a service that has losses by name, on one page.

The trajectories, most often demonstrations, need nothing besides their tokens:
``_prepare_trajectories`` gives them back as they are. For each optimizer step,
:class:`RemoteApiTrainer` sends tokens, mask and the weight w of each token in the mean; the service
takes the gradient of the sum of -w log p(token) and steps AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.remote_api import (
    RemoteApiTrainer,
    RemoteApiTrainerConfig,
    RemoteLossConfig,
)
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.kit import NAMED_LOSSES


@dataclass
class RemoteCrossEntropyAlgorithmConfig(RemoteLossConfig):
    """Algorithm options of supervised training."""

    loss_fn: str = described("cross_entropy", "a loss that the train service has")


@dataclass
class RemoteApiCrossEntropyConfig(RemoteApiTrainerConfig):
    """The trainer section of ``remote_api_cross_entropy``."""

    algorithm: RemoteCrossEntropyAlgorithmConfig = described(
        RemoteCrossEntropyAlgorithmConfig, "loss options"
    )


class RemoteApiCrossEntropyTrainer(RemoteApiTrainer):
    """Maximises the likelihood of the trained tokens; rewards play no part."""

    Config: ClassVar[type] = RemoteApiCrossEntropyConfig
    uses_rewards: ClassVar[bool] = False
    #: For the conformance kit: a service that has losses by name.
    conformance: ClassVar[Mapping[str, Any]] = {"models": {"policy": NAMED_LOSSES}}

    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        return trajectories
