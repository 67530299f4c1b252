"""``TrajectoryTrainer``: rollouts to pool to ``train_step`` to weight sync, step by step."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described, own_components
from plugrl.core.config.schemas.sections import TEXT
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text import trainer_parts
from plugrl.core.text.evaluate.metric_names import FAMILIES, MetricNames, metric_findings
from plugrl.core.text.evaluate.scores import (
    chosen_rollouts,
    evaluated_sample,
    keep_rollouts,
    report_evaluation,
    report_score,
)
from plugrl.core.text.inference.chat import encode_prompt
from plugrl.core.text.models import Models
from plugrl.core.text.preflight import agents_of_protocol, text_findings
from plugrl.core.text.rollout.judge import make_evaluator
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.metrics import rollout_metrics_by_model
from plugrl.core.text.rollout.processes.lockstep import pooled_rollouts
from plugrl.core.text.rollout.worker import RolloutWorker, check_stops, sampling_of
from plugrl.core.text.schedule.state_machine import SYNC, Versions
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.validate_prepared import run_ids_warning
from plugrl.core.trainer import Trainer, TrainingResult
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.evaluate.validation import Validation
    from plugrl.core.text.models import Model

logger = logging.getLogger(__name__)


@dataclass
class TrajectoryTrainerConfig:
    """How long to train."""

    total_train_steps: int = described(100, "training steps", at_least=0, at_most=10**9)
    stop_at: dict[str, float] = described(
        {}, "end early once each of these metrics has reached its value", names="metric"
    )

    def __post_init__(self) -> None:
        """Nothing is left to check; subclasses that were written for 0.1 call it."""


class TrajectoryTrainer(Trainer):
    """Trains models on trajectories; subclass it and write :meth:`train_step`.

    A step collects rollouts of ``data.batch_size`` prompts, gives the trajectories of each
    trained model to ``train_step``, syncs the sampling weights, validates when due and ends with
    ``run.end_step``.
    """

    Config: ClassVar[type] = TrajectoryTrainerConfig
    sections: ClassVar[Mapping[str, Any]] = TEXT
    #: Whether the algorithm learns from rewards, so that dead or missing ones are a fault.
    uses_rewards: ClassVar[bool] = True
    #: Whether the trained model answers prompts; False: it scores answers.
    generates: ClassVar[bool] = True
    #: The metric of the first split that is the score of a step.
    score: ClassVar[str] = "reward"
    #: Whether validations report what attempts do and no more; otherwise their metrics show when
    #: they take place.
    validates_attempts: ClassVar[bool] = True

    def __init__(self, config: Any, *, models: Models | None = None) -> None:
        super().__init__(config)
        self._models = models
        self._step = -1
        self._reached = False
        #: Whether the last step has moved weights: equal rewards, for one, move none.
        self._learned = False
        self._last_metrics: dict[str, float] = {}
        #: Trajectories of this step that are kept as samples, and advantages of their tokens by id.
        self._sampled: list[Trajectory] = []
        self._advantages: dict[int, Sequence[float]] = {}
        self._pending_state: Mapping[str, Any] | None = None
        self._initial_weights: Mapping[str, Mapping[str, torch.Tensor]] = {}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Data files, splits and columns that are missing, and models that nothing trains."""
        said = run_ids_warning(cls)
        if said is not None:
            logger.warning("%s", said)
        yield from text_findings(check)
        yield from metric_findings(check)

    @classmethod
    def known_agents(cls, check: Preflight) -> Collection[str] | None:
        """The agents of the protocol that the rollout worker plays; None: it plays none."""
        return agents_of_protocol(check)

    @classmethod
    def metric_fault(cls, check: Preflight, name: str) -> str | None:
        """Why the steps and validations of a run give no metric of this name; None: they may."""
        return MetricNames(check).fault(name)

    @abstractmethod
    def train_step(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Train one model on its trajectories once and return metrics."""

    @property
    def models(self) -> Models:
        """The models of the run.

        Raises:
            UsageError: the trainer is not bound to a run.
        """
        if self._models is None:
            context = self._bound("models")
            self._models = Models.load(
                context.hyper_params.models,
                context.factory,
                seed=context.hyper_params.seed,
                device=context.settings.device,
                # A run that only validates has none.
                train_steps=self.config.get("total_train_steps"),
                decode_steps=trainer_parts.decode_steps(context.hyper_params),
                shares=context.hyper_params.weight.sync_mode == SYNC,
            )
        return self._models

    @property
    def _factory(self) -> Factory:
        if self._context is None:
            return Factory(default_registry(), own=own_components(type(self).Config))
        return self._context.factory

    @property
    def _temperature(self) -> float:
        """The temperature of log-probabilities; greedy answers have those of 1."""
        return self._sampling.temperature or 1.0

    def export_weights(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Copies of the weights that are trained, or were in an earlier phase, by model name."""
        return self.models.weights()

    def import_weights(self, weights: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Begin with these weights, by model name, instead of those of the sources."""
        self._initial_weights = weights or {}

    def train(self) -> TrainingResult:
        """Run all steps; after a resume, the remaining ones."""
        with closing(self.models):
            self.run.places.add("models", self.models.places)
            self._set_up()
            with closing(self._collector):
                self._train()
        return TrainingResult(steps=self._step, metrics=dict(self._last_metrics))

    def _train(self) -> None:
        if self._step < 0:
            self._end_step(0, self._validate(0) if self._validate_before else {})
        total = self.config.total_train_steps
        with closing(self.run.progress("Training", total)) as progress:
            while self._step < total and not self._reached:
                self._end_step(self._step + 1, self._one_step(self._step + 1))
                progress.update(self._step, **self._progress_numbers())
        if self.uses_rewards:
            self.run.guards.any_valid(self._step)

    @property
    def complete(self) -> bool:
        """Whether the last step has ended, or what ``stop_at`` names is reached."""
        total = self.config.total_train_steps
        return self._reached or (total is not None and self._step >= total)

    def _set_up(self) -> None:
        params, models = self.hyper_params, self.models
        if not models.trained:
            raise ConfigError(
                "no model is trained; give one a train service, such as models.policy.train: local"
            )
        self._set_up_rollouts()
        tokenizer = models[params.rollout_worker.model].inference.tokenizer
        encode = partial(encode_prompt, tokenizer)
        self._pool = trainer_parts.make_pool(params)
        worker = type(self._rollouts.worker)
        self._loader = trainer_parts.make_loader(params, self.scenario_instance, encode, worker)
        self._validation = self._make_validation()
        self._syncs = trainer_parts.make_syncs(params, models)
        self._states = trainer_parts.make_states(params, models)
        common = (params, self._loader, self._pool, self._sampling, self._carried_columns())
        self._collector = trainer_parts.make_collector(
            common, self._rollouts, self._states, self.config.total_train_steps, self._note_attempts
        )
        models.load_weights(self._initial_weights)
        if self._pending_state is not None:
            self._apply(self._pending_state)
        for name, sync in self._syncs.items():
            sync()
            version = models.trained[name].version
            self._states.models[name] = Versions(version, version)

    def _note_attempts(self, attempts: int, seconds: float) -> None:
        """Note attempts that ran in the background in the timeline; from any thread."""
        timeline = self.run.timeline
        timeline.note("rollout", "attempts", timeline.now() - seconds, attempts=attempts)

    def _set_up_rollouts(self) -> None:
        params, factory, models = self.hyper_params, self._bound("train").factory, self.models
        section = params.rollout_worker
        worker: RolloutWorker = factory.build("rollout_worker", section, "rollout_worker")
        if section.get("evaluator") is not None:
            worker.evaluator = make_evaluator(
                factory,
                section.evaluator,
                "rollout_worker.evaluator",
                reference_key=params.data.answer_key,
                prompt_key=params.data.prompt_key,
            )
        self._sampling = sampling_of(section)
        check_stops(section, worker, models.inference)
        self._rollouts = LockstepRollouts(
            worker,
            models.inference,
            params.seed,
            pooled=pooled_rollouts(
                self.run,
                factory,
                section,
                worker,
                models.inference,
                answer_key=params.data.answer_key,
                prompt_key=params.data.prompt_key,
            ),
            timeout=section.get("timeout"),
            # A sampler is never ahead of what trains it.
            newest=lambda name: models.trained[name].version if name in models.trained else None,
        )

    def _make_validation(self) -> Validation | None:
        return trainer_parts.make_validation(
            self.hyper_params,
            self.scenario_instance,
            self._rollouts,
            self._sampling,
            self._validated_splits,
        )

    def loaded_models(self) -> Models:
        """The models with the weights of the loaded state; they are not trained further."""
        models = self.models
        models.load_weights(self._initial_weights)
        # The rest of the state is for training on, and may come from code that has changed since.
        if self._pending_state is not None:
            models.load_state_dict(self._pending_state["models"], weights_only=True)
        for sync in trainer_parts.make_syncs(self.hyper_params, models).values():
            sync()
        return models

    def export(self, model: Model, folder: Path, *, adapter: bool = False) -> None:
        """Write one of the loaded models to a new folder, in the form that others read.

        Raises:
            UsageError: its service writes no such folders, or there is no adapter.
            ConfigError: the model is frozen.
        """
        model.service().export(folder, model.inference.tokenizer, adapter=adapter)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the loaded state on the problems of ``validate``; every attempt is a sample.

        Raises:
            ConfigError: ``validate.enabled`` is false, or there are no problems.
        """
        with closing(self.loaded_models()) as models:
            self._set_up_rollouts()
            validation = self._make_validation()
            if validation is None:
                raise ConfigError("validate.enabled is false, so there is nothing to evaluate on")
            step = max(self._step, 0)
            scores, trajectories = validation(step)
            for t in trajectories:
                self.run.sample("evaluation", evaluated_sample(t, models[t.model], step))
        return scores

    @property
    def _validate_before(self) -> bool:
        return bool(self._validation and self.hyper_params.validate.validate_before_train)

    def _validate_due(self, step: int) -> bool:
        every = self.hyper_params.validate.every
        last = step == self.config.total_train_steps
        return self._validation is not None and (last or bool(every and step % every == 0))

    def _one_step(self, step: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        states, collector = self._states, self._collector
        last = step == self.config.total_train_steps
        states.begin(holds=last or self._validate_due(step))
        with self._timed("rollout", metrics):
            trajectories = collector.fill(self.models.trained, step)
        metrics |= self._report_rollouts(trajectories, step)
        batches = collector.take()
        states.take(collector.oldest)
        collector.start_during_training(step)
        self._sampled = chosen_rollouts(trajectories, self.settings.rollout_samples)
        self._advantages.clear()
        try:
            with self._timed("train", metrics):
                self._train_models(batches, metrics)
        finally:
            # After training, which made their advantages, and also where it failed.
            keep_rollouts(self.run, step, self._sampled, self.models, self._advantages)
            self._sampled = []
        states.train(self._versions())
        self._move_weights(trajectories, metrics, step)
        if self._validate_due(step):
            metrics |= self._validate_alone(step)
        states.end()
        return metrics | collector.metrics()

    def _move_weights(
        self, trajectories: Sequence[Trajectory], metrics: dict[str, float], step: int
    ) -> None:
        states, collector = self._states, self._collector
        for name, sync in self._syncs.items():
            sync.observe([t for t in trajectories if t.model == name])
        due = states.sync_due
        if due:
            self._wait_for_rollouts(collector.before_sync, metrics)
            states.sync(collector.open)
        if due or states.rules.mode == SYNC:
            with self._timed("sync", metrics):
                self._sync(metrics, step)
        if due:
            states.synced()

    def _wait_for_rollouts(self, settle: Callable[[], None], metrics: dict[str, float]) -> None:
        """Let rollouts that overlap come to what ``settle`` waits for: it is they that may hang."""
        if self._collector.overlaps:
            with self._timed("rollout", metrics):
                settle()

    def _validate_alone(self, step: int) -> dict[str, float]:
        """Validate with a sampler that has the trained weights and nothing else to do."""
        metrics: dict[str, float] = {}
        self._wait_for_rollouts(self._collector.wait_until_idle, metrics)
        self._states.validate(self._collector.open)
        metrics |= self._validate(step)
        self._states.validated()
        return metrics

    def _carried_columns(self) -> Sequence[str]:
        """Columns of the data that trajectories carry along as extra fields."""
        columns: Sequence[str] = self.hyper_params.trajectory_pool.key_list
        return columns

    def _report_rollouts(self, trajectories: list[Trajectory], step: int) -> dict[str, float]:
        """Guard the new trajectories, tell plugins of them, and give their metrics."""
        if self.uses_rewards and trajectories:
            self.run.guards.rewards(
                step,
                [t.total_reward for t in trajectories],
                [t.valid for t in trajectories],
                reason=next((t.failure for t in trajectories if not t.valid), ""),
            )
        metrics = rollout_metrics_by_model(trajectories) | self._rollouts.metrics()
        self.run.hooks.call(
            "plugrl_rollouts_collected",
            run=self.run,
            step=step,
            trajectories=trajectories,
            metrics=dict(metrics),
        )
        return metrics

    def _train_models(
        self, batches: Mapping[str, list[Trajectory]], metrics: dict[str, float]
    ) -> None:
        before = self._versions()
        for name, trajectories in batches.items():
            if not any(t.valid for t in trajectories):
                continue
            report = self.train_step(trajectories)
            metrics |= {f"{self._prefix('train', name)}/{key}": v for key, v in report.items()}
        self._learned = self._versions() != before
        metrics |= self._pool.metrics() | self._loader.metrics()

    def _versions(self) -> dict[str, int]:
        return {name: train.version for name, train in self.models.trained.items()}

    def _prefix(self, what: str, model: str) -> str:
        """``what`` for metrics of the only trained model, ``what/model`` when there are more."""
        return what if len(self.models.trained) == 1 else f"{what}/{model}"

    def _sync(self, metrics: dict[str, float], step: int) -> None:
        for name, sync in self._syncs.items():
            started = self.run.timeline.now()
            parity = sync()
            if sync.moved_bytes:
                metrics[f"{self._prefix('sync', name)}/bytes"] = sync.moved_bytes
                self.run.timeline.note("weights", name, started, bytes=sync.moved_bytes)
            if parity is not None:
                metrics[f"{self._prefix('sync', name)}/parity"] = parity
        versions = self._versions()
        self.run.hooks.call("plugrl_weights_synced", run=self.run, step=step, versions=versions)

    def _validate(self, step: int) -> dict[str, float]:
        if self._validation is None:
            raise RunError("validation is switched off (validate.enabled)")
        metrics: dict[str, float] = {}
        with self._timed("validate", metrics):
            scores, trajectories = self._validation(step)
        failures = [t.failure for t in trajectories if not t.valid]
        self.run.guards.failures(step, len(failures), len(trajectories), "".join(failures[:1]))
        section, first = self.hyper_params.validate, next(iter(self._validated_splits))
        report_score(self.run, section, scores, default=f"{first}/{self.score}")
        samples = [evaluated_sample(t, self.models[t.model], step) for t in trajectories[:4]]
        report_evaluation(self.run, step, scores, samples)
        return metrics | scores

    @property
    def _validated_splits(self) -> Sequence[str]:
        section = self.hyper_params.validate.data
        return ["validation"] if section.data_files else list(section.splits)

    def _end_step(self, step: int, metrics: dict[str, float]) -> None:
        self._step = step
        self._last_metrics |= metrics
        targets = self.config.stop_at
        self._reached = bool(targets) and all(
            metrics.get(name, float("-inf")) >= value for name, value in targets.items()
        )
        self.run.end_step(step, metrics)
        self._check_targets(step, metrics)

    def _check_targets(self, step: int, metrics: Mapping[str, float]) -> None:
        """Refuse a name of ``stop_at`` that was not among the first metrics of its kind.

        Raises:
            ConfigError: it was not.
        """
        known = self._last_metrics
        for name in self.config.stop_at:
            family = name.partition("/")[0]
            if family == "rollout":
                # Without a valid attempt there is no reward.
                due = "rollout/reward" in metrics
            elif family != "train" and family in (*FAMILIES, *self._validated_splits):
                due = any(metric.startswith(f"{family}/") for metric in metrics)
            else:
                due = self._learned
            if due and name not in known:
                close = did_you_mean(name, known, 1) or f"; there are: {', '.join(sorted(known))}"
                raise ConfigError(
                    f"trainer.stop_at: step {step} reported no metric {name!r}{close}"
                )

    def _progress_numbers(self) -> dict[str, float]:
        """Beside the headline: what it learns from first, then the rest."""
        found = {k: v for k, v in self._last_metrics.items() if k.endswith(("reward", "loss"))}
        family = "rollout/" if self.uses_rewards else "train/"
        if not self.uses_rewards:
            # Worked solutions get none, which would be shown as 0.
            found.pop("rollout/reward", None)
        return dict(sorted(found.items(), key=lambda item: not item[0].startswith(family)))

    def state_dict(self) -> dict[str, Any]:
        """Models, optimizers, data position, probe and counters."""
        return {
            "step": self._step,
            "reached": self._reached,
            "last_metrics": dict(self._last_metrics),
            "models": self.models.state_dict(),
            "loader": self._loader.state_dict(),
            "pool": self._pool.state_dict(),
            "syncs": {name: sync.state_dict() for name, sync in self._syncs.items()},
            "collector": self._collector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; it is applied when training goes on."""
        self._pending_state = state
        self._step = state["step"]
        self._reached = state["reached"]
        self._last_metrics = dict(state["last_metrics"])

    def _apply(self, state: Mapping[str, Any]) -> None:
        self.models.load_state_dict(state["models"])
        self._loader.load_state_dict(state["loader"])
        self._pool.load_state_dict(state["pool"])
        for name, sync in self._syncs.items():
            sync.load_state_dict(state["syncs"][name])
        self._collector.load_state_dict(state.get("collector", {}))
        self._pending_state = None
