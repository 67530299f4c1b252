"""The fine-tuning service ``tinker``: jobs over an adapter that a Tinker API service keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.jobs.service import TrainedJobs, TrainedJobsConfig
from plugrl.plugins.tinker.inference_service import SAMPLER
from plugrl.plugins.tinker.train_service import STATE

if TYPE_CHECKING:
    from plugrl.core.text.inference.services import InferenceService


@dataclass
class TinkerJobsConfig(TrainedJobsConfig):
    """Options of the fine-tuning service ``tinker``."""

    save_interval: float = described(
        300.0,
        "seconds of training after which the service saves the state of a job",
        at_least=0,
        at_most=1e8,
    )
    train: Any = component("train_service", "tinker", help="takes the optimizer steps")


class TinkerFineTuneService(TrainedJobs):
    """Trains jobs with the train service ``tinker``; their results are paths of the service.

    Weights to sample from are kept as long as the states (``train.state_ttl``), since a resumed run
    samples from them.
    """

    Config: ClassVar[type] = TinkerJobsConfig

    def _train_section(self) -> Mapping[str, Any]:
        section = dict(self.config.train)
        return ConfigView({**section, "sampler_ttl": section.get("state_ttl")}, "train")

    def _give(self, inference: InferenceService, handed: Mapping[str, Any], version: int) -> None:
        """Let a sampler of the service take the weights by their path.

        Raises:
            RunError: the service keeps neither these weights nor the state that they are of.
            ConfigError: another service trained the model.
        """
        if SAMPLER not in handed or STATE not in handed:
            raise ConfigError(
                f"models.{self._spec.name}.fine_tune: what the job gave is not of the service "
                "tinker; restore the train service that the run began with"
            )
        try:
            inference.use_saved_weights(str(handed[SAMPLER]), version)
            # A path that is gone shows in the first request alone.
            inference.score([[inference.tokenizer.eos_token_id] * 2])
        except RunError:
            # The state is what training goes on from; weights can be made of it again.
            service = self._service(handed)
            service.version = version
            service.sync_to(inference)
