"""``SelfHostedTrainer``: trains on padded batches; you write ``_prepare_batch``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ContractError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.batch import Batch
from plugrl.core.text.dry_run import try_step
from plugrl.core.text.inference.services import TrainService
from plugrl.core.text.learn import advantages
from plugrl.core.text.learn.batch_shaping import Shaper
from plugrl.core.text.learn.dead_coefficients import dead_coefficients, dead_terms
from plugrl.core.text.learn.losses import WeightedLoss, compatibility_findings, declared_needs
from plugrl.core.text.learn.minibatches import PassesConfig
from plugrl.core.text.learn.policy_options import PolicyOptions, policy_findings, terms_of
from plugrl.core.text.learn.step import (
    Aggregation,
    aggregation_weights,
    attach_loss_weights,
    check_aggregation,
    minibatches,
    optimizer_steps,
)
from plugrl.core.text.models import load_state
from plugrl.core.text.remote.preflight import unfit_services
from plugrl.core.text.rollout.metrics import mean_metrics, rollout_metrics
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer, TrajectoryTrainerConfig
from plugrl.core.text.unused_options import warn_of_unused_options
from plugrl.core.text.validate_prepared import batch_fault, check_parameters

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight


@dataclass
class AlgorithmConfig(PassesConfig):
    """How rewards become a gradient."""

    advantage: Any = component("advantage", "grpo", help="from rewards to advantages")
    loss: Any = component("loss", "clipped", help="from log-probabilities to a loss per token")
    aggregation: Aggregation = described("token-mean", "how the loss per token is summed up")
    norm_length: int | None = described(
        None, "length for seq-mean-token-sum-norm", at_least=1, at_most=10**8
    )

    def __post_init__(self) -> None:
        check_aggregation(self.aggregation, self.norm_length)


@dataclass
class PolicyAlgorithmConfig(PolicyOptions, AlgorithmConfig):
    """How rewards become a gradient, with the options of policy-gradient trainers."""


@dataclass
class SelfHostedTrainerConfig(TrajectoryTrainerConfig):
    """The trainer section of a self-hosted trainer."""

    algorithm: PolicyAlgorithmConfig = described(
        PolicyAlgorithmConfig, "advantage, loss and their options"
    )


class SelfHostedTrainer(TrajectoryTrainer):
    """Prepares a batch and trains a model with a train service.

    Subclass it for a new algorithm: ``_prepare_batch(batch) -> (batch, metrics)`` adds what the
    loss needs. Advantages go to ``batch.values["advantages"]`` ([B, T]) or
    ``batch.metadata["advantages"]`` (one a row); every tensor put into ``batch.values`` reaches
    the loss.
    """

    Config: ClassVar[type] = SelfHostedTrainerConfig
    _coefficients_checked = False
    #: Metrics of the rewards of the batch that is prepared.
    _shaped: Mapping[str, float] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        form = "(self, batch) -> tuple[Batch, dict] and return the metrics"
        check_parameters(cls, "_prepare_batch", 2, form)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Besides data and models: train services that take no gradient of any loss."""
        yield from super().preflight(check)
        yield from unfit_services(check, TrainService)
        yield from policy_findings(check)
        yield from compatibility_findings(check, cls)
        warn_of_unused_options(check)

    @abstractmethod
    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Add what the loss needs to ``batch`` and return it with metrics."""

    def train_step(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Train the model of ``trajectories`` once; its version grows by one."""
        model = trajectories[0].model
        service = self.models[model].trained()
        batch, metrics = self._prepare_for_loss(self._batch_of(trajectories))
        self._note_advantages(trajectories, batch)
        report = self._optimize(service, batch)
        service.version += 1
        return report | metrics

    def _prepare_for_loss(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """``batch`` with everything that the loss needs, and metrics of it."""
        self._shaped = self._shaper.prepare(batch, self.models)
        batch, metrics = self._check_prepared(self._prepare_batch(batch))
        self._shaper.check_shaped(type(self).__name__)
        return advantages.mirror(batch), self._shaped | metrics

    def _note_advantages(self, trajectories: Sequence[Trajectory], batch: Batch) -> None:
        """Remember the advantages of those that are kept as samples, if there is a row for each."""
        table = batch.values.get("advantages")
        if table is None or len(table) != len(trajectories):
            return
        kept = {id(t) for t in self._sampled}
        for t, row in zip(trajectories, table, strict=True):
            if id(t) in kept:
                self._advantages[id(t)] = row[: len(t.tokens)].tolist()

    def _batch_of(self, trajectories: Sequence[Trajectory]) -> Batch:
        """Trajectories of one model as a batch in which invalid ones train nothing."""
        model = trajectories[0].model
        batch = Batch.from_trajectories(
            trajectories,
            pad_token_id=self.models[model].inference.tokenizer.pad_token_id,
            temperature=self._temperature,
        )
        batch.values["loss_mask"] *= batch.metadata["valid"][:, None]
        return batch

    def _check_prepared(self, prepared: Any) -> tuple[Batch, dict[str, float]]:
        fault = batch_fault(prepared)
        if fault is not None:
            # The place is looked up here alone: it reads the method's source.
            name = (
                f"{type(self).__name__}._prepare_batch{location_suffix(type(self)._prepare_batch)}"
            )
            raise ContractError(f"{name} {fault}")
        batch, metrics = prepared
        return batch, dict(metrics)

    def _optimize(self, service: TrainService, batch: Batch) -> dict[str, float]:
        """The optimizer steps of a training step; see :mod:`plugrl.core.text.learn.step`."""
        loss = self._loss
        parts = map(self._before_optimizer_step, self._minibatches(batch, loss))
        return optimizer_steps(
            service,
            self._check_coefficients_once(loss, parts),
            loss,
            step=self._step + 1,
            guards=self.run.guards,
            dump_contents=partial(self._dump_contents, service),
        )

    def _minibatches(self, batch: Batch, loss: WeightedLoss) -> Iterator[Batch]:
        seed = (self.hyper_params.seed, self._step + 1)
        algorithm = self.config.algorithm
        return minibatches(batch, loss, passes=algorithm, seed=seed, weights=self._weights)

    def _check_coefficients_once(
        self, loss: WeightedLoss, parts: Iterable[Batch]
    ) -> Iterator[Batch]:
        """``parts``; with the first one of a run, dead coefficients are looked for."""
        for part in parts:
            guards = self.run.guards
            if not self._coefficients_checked and guards.policy.dead_coefficients != "ignore":
                self._coefficients_checked = True
                dead = dead_coefficients(loss, part)
                guards.dead_coefficients("trainer.algorithm.loss", dead)
                guards.dead_coefficients("trainer.algorithm", dead_terms(loss, part))
            yield part

    def _dump_contents(
        self, service: TrainService, part: Batch, totals: Mapping[str, tuple[float, float]]
    ) -> dict[str, Any]:
        """What :meth:`replay` needs to repeat one optimizer step."""
        return {
            "model": part.metadata["model"],
            "phase": self.run.phase_number,
            "loss": totals["loss"][0],
            "batch": {"values": part.values, "metadata": part.metadata},
            "service": service.state_dict(),
        }

    def replay(self, evidence: Mapping[str, Any]) -> dict[str, float]:
        """Repeat the optimizer step of a dump, from the weights that it began with.

        Returns:
            ``loss``, which equals the recorded one on the same machine, ``grad_norm``, the
            loss's metrics, and ``non_finite_rows``: rows whose log-probabilities are not finite.

        Raises:
            ConfigError: the configuration has no such trained model.
            RunError: the dumped weights do not fit it.
        """
        service = self.models[evidence["model"]].trained()
        load_state(evidence["model"], service, evidence["service"])
        batch = Batch(dict(evidence["batch"]["values"]), dict(evidence["batch"]["metadata"]))
        log_probs = service.compute_log_prob(batch)
        totals = service.forward_backward(batch, self._loss)
        rows = (~log_probs.isfinite()).any(1).sum()
        return {
            **mean_metrics(totals),
            "grad_norm": service.optimizer_step()["grad_norm"],
            "non_finite_rows": float(rows),
        }

    def dry_run(self) -> dict[str, float]:
        """Try an optimizer step on the longest sequences and the largest micro-batch.

        Raises:
            RunError: it does not fit into memory.
        """
        return try_step(self)

    @property
    def rows_per_unit(self) -> int:
        """Rows that are never split, see :mod:`plugrl.core.text.learn.minibatches`."""
        return 1

    def trajectories_per_attempt(self) -> int:
        """Trajectories that one attempt of the rollout worker gives."""
        section = self.hyper_params.rollout_worker
        worker = self._factory.load("rollout_worker", section, "rollout_worker")
        return int(worker.trajectories_per_attempt(section))

    def trial_batch(self, batch: Batch) -> Batch:
        """The rows of a dry run with everything that the loss needs."""
        return self._prepare_for_loss(self._dry_run_rows(batch))[0]

    def trial_step(self, model: str, batch: Batch) -> None:
        """An optimizer step of ``model`` on ``batch`` and the backward pass of the next one."""
        service = self.models[model].trained()
        batch = attach_loss_weights(batch, self._loss, self._weights)
        batch = self._before_optimizer_step(batch)
        service.forward_backward(batch, self._loss)
        service.optimizer_step()
        service.forward_backward(batch, self._loss)

    def _dry_run_rows(self, batch: Batch) -> Batch:
        """The rows of a dry run with what the trajectories of this algorithm have besides."""
        return batch

    def _weights(self, loss_mask: torch.Tensor) -> torch.Tensor:
        """The weight of each token, [B, T], in the loss of an optimizer step."""
        algorithm = self.config.algorithm
        return aggregation_weights(loss_mask, algorithm.aggregation, algorithm.norm_length)

    def _before_optimizer_step(self, part: Batch) -> Batch:
        """Add to ``part`` what depends on the weights just before its optimizer step.

        Override it for a loss that needs such numbers; whatever is added reaches the loss.
        """
        return part

    @cached_property
    def _loss(self) -> WeightedLoss:
        section = self.config.algorithm.loss
        function = self._factory.load("loss", section, "trainer.algorithm.loss")
        values = "values" in declared_needs(self._advantage)
        terms = terms_of(self.config.algorithm, values=values)
        return WeightedLoss(function, section, tuple(terms))

    @cached_property
    def _advantage(self) -> advantages.Advantage:
        section = self.config.algorithm.advantage
        function: advantages.Advantage = self._factory.load(
            "advantage", section, "trainer.algorithm.advantage"
        )
        return function

    @cached_property
    def _shaper(self) -> Shaper:
        worker = {} if self._context is None else self.hyper_params.rollout_worker
        return Shaper(self.config.algorithm, worker.get("max_response_length"))

    @property
    def _pad_token_id(self) -> int:
        """The padding token of the trained model; 0 outside a run."""
        if self._models is None and self._context is None:
            return 0
        name = self.hyper_params.rollout_worker.model
        return self.models[name].inference.tokenizer.pad_token_id

    def _log_rollout_metrics(self, batch: Batch) -> dict[str, float]:
        """Rewards, lengths and truncation of the rows of ``batch``."""
        return rollout_metrics(batch.to_trajectories())

    def _reward_fn(self, batch: Batch) -> torch.Tensor:
        """Rewards at the tokens that earned them, [B, T]; of the whole, at the last trained one."""
        return advantages.rewards_of_tokens(batch)

    def _compute_old_log_probs(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities under the model as it is now: [B, T]."""
        return self.models[batch.metadata["model"]].trained().compute_log_prob(batch)

    def _compute_advantage(self, batch: Batch) -> Batch:
        """Add the advantages of ``algorithm.advantage`` to ``values`` and ``metadata``.

        Penalties of ``algorithm.kl.reward`` and ``algorithm.overlong`` are taken from the rewards
        before.
        """
        self._shaped = {**self._shaped, **self._shaper.shape_rewards(batch)}
        function, section = self._advantage, self.config.algorithm.advantage
        if "values" in declared_needs(function):
            service = self.models[batch.metadata["model"]].trained()
            batch.values["old_values"] = service.compute_values(batch)
        return advantages.attach(batch, advantages.compute(function, batch, section))

    def state_dict(self) -> dict[str, Any]:
        """Besides models, data and counters: the coefficients of penalties."""
        return {**super().state_dict(), "shaper": self._shaper.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; it is applied when training goes on."""
        super().load_state_dict(state)
        self._shaper.load_state_dict(state.get("shaper", {}))
