"""``TrainedJobs``: fine-tuning jobs that a train service of plugrl carries out, part by part."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.pick import shown_name
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, NonFiniteError, RunError, UsageError
from plugrl.core.text.inference.chat import chat_tokenizer
from plugrl.core.text.inference.services import BaseTrainService, ModelSpec
from plugrl.core.text.jobs.examples import trajectories
from plugrl.core.text.jobs.fine_tuning import Examples, FineTuneConfig, FineTuneService, JobStatus
from plugrl.core.text.jobs.folder import JobFolder, drop_models
from plugrl.core.text.jobs.steps import JobData, batches, train_on
from plugrl.core.text.learn.losses import WeightedLoss, declared_needs
from plugrl.core.text.models import load_state

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.inference.tokenizer import Tokenizer
    from plugrl.core.text.jobs.fine_tuning import JobContext

logger = logging.getLogger(__name__)


@dataclass
class TrainedJobsConfig(FineTuneConfig):
    """How a job trains on its examples."""

    epochs: int = described(3, "passes over the examples of a job", at_least=1, at_most=10**5)
    batch_size: int = described(16, "examples of an optimizer step", at_least=1, at_most=10**6)
    max_length: int | None = described(
        None,
        "tokens of the longest example; longer ones are left out; null: the model's context",
        at_least=2,
        at_most=10**8,
    )
    keep: int | None = described(
        None,
        "models of jobs that are kept, the newest ones; null: all; a resume needs two",
        at_least=2,
        at_most=10**6,
    )
    save_interval: float = described(
        60.0, "seconds of training after which a job is saved", at_least=0, at_most=1e8
    )
    train: Any = component("train_service", "local", help="takes the optimizer steps")
    preference_loss: Any = component("loss", "dpo", help="of preferences, a loss of pairs")


@dataclass
class _Training:
    """A job that is being trained."""

    folder: JobFolder
    service: BaseTrainService
    data: JobData
    steps: list[list[int]]
    done: int
    metrics: dict[str, float]


class TrainedJobs(FineTuneService):
    """Trains jobs with a train service while their status is asked for.

    A job is a folder. Each question trains for ``save_interval`` seconds at most and saves, so that
    a job goes on where a killed process left it. The loss of preferences compares with the weights
    that the job began with.
    """

    Config: ClassVar[type] = TrainedJobsConfig
    loads_weights: ClassVar[bool] = True
    _training: _Training | None = None
    _handed: Mapping[str, Any] | None = None

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """A loss of preferences that is none of pairs, or of more than log-probabilities."""
        path = f"{check.path}.preference_loss"
        loss, section = check.component(path), check.section.preference_loss
        if loss is None:
            return
        name = shown_name(section, "loss")
        if not getattr(loss, "compares_pairs", False):
            yield path, f"{name} compares no pairs of replies; write dpo or ipo"
        elif declared_needs(loss, section):
            yield path, f"{name} needs more than log-probabilities; write dpo or ipo"

    def load(self, spec: ModelSpec, context: JobContext) -> None:
        """Take the model that jobs begin with; its weights are loaded when a job trains.

        Raises:
            ConfigError: its tokenizer has no chat template, or what samples from it takes no
                weights.
        """
        self._spec, self._context = spec, context
        if not context.inference.takes_weights:
            raise ConfigError(
                f"models.{spec.name}.inference: its server takes no weights, so the models of jobs "
                "that are trained here could not be sampled from; use vLLM or SGLang, the "
                "inference service transformers, or the fine-tuning service of that server"
            )
        self._tokenizer = chat_tokenizer(context.inference.tokenizer, spec.name)

    def find(self, name: str) -> str | None:
        """The job's id, which is its name; None: it was not made."""
        return name if self._folder(name).exists else None

    def create(self, name: str, examples: Examples, base: str | None) -> str:
        """Make the job's folder; nothing is trained yet.

        Raises:
            RunError: the disk is full, or the model to begin with is not there.
        """
        if base is not None:
            self._folder(base).about()
        self._folder(name).make(examples, {"base": base, "examples": len(examples)})
        return name

    def retry(self, name: str, job: str, base: str | None) -> str:
        """Make the job ``name`` with the examples of ``job``, which failed."""
        return self.create(name, self._folder(job).examples(), base)

    def status(self, job: str) -> JobStatus:
        """Train a part of the job, and say where it is.

        Raises:
            RunError: there is no such job, or its folder is damaged.
        """
        folder = self._folder(job)
        about, ended = folder.about(), folder.ended()
        if ended is not None:
            return JobStatus(ended["state"], ended["message"])
        if folder.has_model:
            result = folder.result()
            return JobStatus("succeeded", result["message"], job, metrics=result["metrics"])
        try:
            return self._part(folder, about)
        except JobFailedError as failure:
            self._let_go()
            folder.end("failed", str(failure))
            return JobStatus("failed", str(failure))

    def cancel(self, job: str) -> None:
        """End a job that is open."""
        folder = self._folder(job)
        if folder.ended() is None and not folder.has_model:
            self._let_go()
            folder.end("cancelled", "it was asked to")

    def use(self, inference: InferenceService, model: str, version: int) -> None:
        """Let ``inference`` sample from the model of a job, as ``version``.

        Raises:
            RunError: it is no longer there, or does not fit.
        """
        handed = self._folder(model).model()
        try:
            self._give(inference, handed, version)
        except (ValueError, KeyError) as error:
            raise RunError(
                f"the model of job {model} does not fit models.{self._spec.name}.source as it is "
                f"now ({error}); restore the source that the run began with"
            ) from error

    def _give(self, inference: InferenceService, handed: Mapping[str, Any], version: int) -> None:
        """Give the result of a job to a sampler: its weights, or where they are kept."""
        if all(isinstance(value, torch.Tensor) for value in handed.values()):
            inference.update_weights(handed, version)
        else:
            inference.import_weights(handed)
            inference.version = version

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Begin with what the train service of an earlier phase handed over."""
        self._handed = dict(handed)

    def export_weights(self, model: str) -> Mapping[str, Any]:
        """The result of a job, as its train service handed it over."""
        return self._folder(model).model()

    def export(
        self, model: str | None, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False
    ) -> None:
        """Write the model of a job as the train service writes folders.

        Raises:
            UsageError: the train service writes none, or an adapter alone is wanted: jobs keep
                models with their adapters merged in.
        """
        if adapter:
            raise UsageError("jobs keep models with their adapters merged in; leave --adapter out")
        handed = self._handed if model is None else self._folder(model).model()
        with contextlib.closing(self._service(handed)) as service:
            service.export(folder, tokenizer)

    def close(self) -> None:
        """Forget a job that is half trained; what was saved of it stays."""
        self._let_go()

    def _let_go(self) -> None:
        held, self._training = self._training, None
        if held is not None:
            held.service.close()

    # -- training -----------------------------------------------------------------------------

    def _folder(self, name: str) -> JobFolder:
        return JobFolder(Path(self._context.folder), name)

    def _part(self, folder: JobFolder, about: Mapping[str, Any]) -> JobStatus:
        held = self._training
        if held is None or held.folder.name != folder.name:
            self._let_go()
            held = self._training = self._open_training(folder, about)
        started = time.monotonic()
        while held.done < len(held.steps):
            self._step(held)
            if time.monotonic() - started >= self.config.save_interval:
                break
        if held.done == len(held.steps):
            return self._finished_status(held)
        folder.save(held.done, self._state(held))
        said = f"step {held.done} of {len(held.steps)}"
        return JobStatus("running", said, wait=0.0, metrics=dict(held.metrics))

    def _open_training(self, folder: JobFolder, about: Mapping[str, Any]) -> _Training:
        """The job with the weights that it begins with, or with what was saved of it."""
        config = self.config
        limit = min(config.max_length or 1 << 62, self._context.inference.max_sequence_length)
        made, dropped = trajectories(folder.examples(), self._tokenizer, limit)
        if dropped:
            logger.warning(
                "job %s leaves out %d examples of more than %d tokens", folder.name, dropped, limit
            )
        if not made:
            raise JobFailedError(f"all {dropped} examples have more than {limit} tokens")
        base = about["base"]
        service = self._service(self._handed if base is None else self._folder(base).model())
        data = JobData(made, self._tokenizer.pad_token_id)
        seed = (self._spec.seed & 0xFFFFFFFF, folder.fingerprint())
        steps = batches(seed, len(made), config.batch_size, config.epochs)
        held = _Training(folder, service, data, steps, 0, {})
        state = folder.restore()
        if state is not None:
            load_state(self._spec.name, service, state["service"])
            data.load_state_dict(state["data"])
            held.done, held.metrics = int(state["done"]), dict(state["metrics"])
        elif data.prefers:
            data.ask_reference(service, config.batch_size)
        return held

    def _service(self, handed: Mapping[str, Any] | None) -> BaseTrainService:
        """A train service that begins with ``handed``; None: with the source."""
        factory, path = self._context.factory, f"models.{self._spec.name}.fine_tune.train"
        service: BaseTrainService = factory.build("train_service", self._train_section(), path)
        service.load(replace(self._spec, trained=True))
        if handed is not None:
            service.import_weights(handed)
        return service

    def _train_section(self) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.config.train
        return section

    def _step(self, held: _Training) -> None:
        batch = held.data.batch(held.steps[held.done])
        try:
            held.metrics = train_on(held.service, batch, self._loss(held.data.prefers))
        except NonFiniteError as error:
            raise JobFailedError(
                f"step {held.done + 1} of {len(held.steps)}: {error}; lower "
                f"models.{self._spec.name}.fine_tune.train.learning_rate"
            ) from error
        held.done += 1

    def _loss(self, prefers: bool) -> WeightedLoss:
        factory = self._context.factory
        if not prefers:
            return WeightedLoss(factory.registry.get("loss", "plugrl/cross_entropy"), None)
        section = self.config.preference_loss
        path = f"models.{self._spec.name}.fine_tune.preference_loss"
        return WeightedLoss(factory.load("loss", section, path), section)

    @staticmethod
    def _state(held: _Training) -> dict[str, Any]:
        return {
            "service": held.service.state_dict(),
            "data": held.data.state_dict(),
            "done": held.done,
            "metrics": held.metrics,
        }

    def _finished_status(self, held: _Training) -> JobStatus:
        message = f"{held.done} steps over {len(held.data.examples)} examples"
        about = {"message": message, "metrics": held.metrics}
        held.folder.finish(held.service.export_weights(), about)
        if self.config.keep is not None:
            drop_models(Path(self._context.folder), self.config.keep)
        self._let_go()
        return JobStatus("succeeded", message, held.folder.name, metrics=dict(held.metrics))


class JobFailedError(Exception):
    """A job that cannot succeed; the text says why."""
