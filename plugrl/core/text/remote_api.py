"""``RemoteApiTrainer``: trains with losses of a service; you write ``_prepare_trajectories``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, ContractError, UsageError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.batch import pad_rows
from plugrl.core.text.learn import advantages
from plugrl.core.text.learn.minibatches import PassesConfig, splits
from plugrl.core.text.learn.step import aggregation_weights, check_aggregation
from plugrl.core.text.models import load_state
from plugrl.core.text.remote.datums import datum_of, fill_missing_logprobs, sum_metrics
from plugrl.core.text.remote.preflight import loss_fault, remote_findings
from plugrl.core.text.remote.service import Datum, ForwardBackward, NamedLoss, RemoteTrainService
from plugrl.core.text.rollout.metrics import Means, mean_metrics
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer, TrajectoryTrainerConfig
from plugrl.core.text.validate_prepared import check_parameters, trajectories_fault

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.batch import Batch

RemoteAggregation = Literal[
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "token-sum",
]


@dataclass
class RemoteLossConfig(PassesConfig):
    """Which of the service's losses is trained with, and how often."""

    loss_fn: str = described("importance_sampling", "a loss that the train service has")
    loss_fn_config: dict[str, float] = described({}, "numbers of that loss")
    aggregation: RemoteAggregation = described(
        "token-mean", "how the loss per token is summed up; token-sum: as the service does"
    )
    norm_length: int | None = described(
        None, "length for seq-mean-token-sum-norm", at_least=1, at_most=10**8
    )

    def __post_init__(self) -> None:
        check_aggregation(self.aggregation, self.norm_length)


@dataclass
class RemoteAlgorithmConfig(RemoteLossConfig):
    """How rewards become advantages, and which of the service's losses they go into."""

    advantage: Any = component("advantage", "grpo", help="from rewards to advantages")


@dataclass
class RemoteApiTrainerConfig(TrajectoryTrainerConfig):
    """The trainer section of a remote-API trainer."""

    algorithm: RemoteAlgorithmConfig = described(RemoteAlgorithmConfig, "advantage and loss")


class RemoteApiTrainer(TrajectoryTrainer):
    """Prepares trajectories and trains a model with a service that has losses by name.

    Subclass it for a new algorithm: ``_prepare_trajectories(trajectories, metrics)`` gives each
    trajectory its ``advantage``, or its ``token_advantages``, adds to ``metrics`` and returns the
    trajectories to train on. Those whose agent or evaluator failed are left out before. A training
    step is::

        trajectories = _prepare_trajectories(those that are valid, metrics)          yours
        for each optimizer step, on a minibatch of trajectories:                     (_optimize)
            weights = share of each token in the aggregated loss                     (_datums)
            datum   = tokens, mask, log-probabilities, advantages times weights      (datum_of)
            the service adds the gradient of algorithm.loss_fn over all datums
            guards: a dump, and a loss or gradient that is not finite
            the service steps AdamW                                                  (service.apply)
    """

    Config: ClassVar[type] = RemoteApiTrainerConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        form = "(self, trajectories, metrics) -> list[Trajectory] and add to the metrics"
        check_parameters(cls, "_prepare_trajectories", 3, form)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Besides data and models: losses and options that the service does not have."""
        yield from super().preflight(check)
        yield from remote_findings(check)

    @abstractmethod
    def _prepare_trajectories(
        self, trajectories: list[Trajectory], metrics: dict[str, Any]
    ) -> list[Trajectory]:
        """Give trajectories their advantages; return those to train on."""

    def train_step(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Train the model of ``trajectories`` once; its version grows unless nothing was left.

        Raises:
            ContractError: ``_prepare_trajectories`` breaks its contract, or an advantage or
                log-probability that the loss reads is missing.
        """
        service = self.models[trajectories[0].model].trained_by(RemoteTrainService)
        fault = loss_fault(self.config.algorithm, type(service))
        if fault is not None:
            raise ConfigError("trainer.algorithm.{}: {}".format(*fault))
        metrics: dict[str, Any] = {}
        valid = [t for t in trajectories if t.valid]
        prepared = self._validate_prepared(self._prepare_trajectories(valid, metrics), metrics)
        loss = service.losses[self.config.algorithm.loss_fn]
        if "logprobs" in loss.inputs:
            # Ratios need the log-probabilities of the sampler; some workers keep none.
            prepared = fill_missing_logprobs(service, prepared)
        report = self._optimize(service, prepared, loss)
        return report | {name: float(value) for name, value in metrics.items()}

    def _validate_prepared(self, prepared: Any, metrics: Mapping[str, Any]) -> list[Trajectory]:
        fault = trajectories_fault(prepared, metrics, self._temperature)
        if fault is not None:
            method = type(self)._prepare_trajectories
            name = f"{type(self).__name__}._prepare_trajectories{location_suffix(method)}"
            raise ContractError(f"{name} {fault}")
        return list(prepared)

    def _optimize(
        self, service: RemoteTrainService, trajectories: Sequence[Trajectory], loss: NamedLoss
    ) -> dict[str, float]:
        step, guards, algorithm = self._step + 1, self.run.guards, self.config.algorithm
        means, steps = Means(), Means()
        applied, empty = False, 0
        for number, minibatch in enumerate(self._minibatches(trajectories)):
            datums = self._datums(minibatch, loss)
            steps.add({"without_signal": (len(minibatch) - len(datums), len(minibatch))})
            if not datums:
                empty += 1
                continue
            answer = service.forward_backward(
                datums, algorithm.loss_fn, algorithm.loss_fn_config
            ).result()
            service.fitting(datums, answer.logprobs)
            contents = partial(self._dump_contents, service, minibatch[0].model, datums, answer)
            guards.keep(step, f"minibatch {number}", contents)
            finite = guards.check_finite("loss", answer.loss, step=step, batch=contents)
            # A service cannot forget a gradient: it drops one that is not finite in its own step.
            report = service.apply()
            if finite and "grad_norm" in report:
                norm = report["grad_norm"]
                finite = guards.check_finite("gradient norm", norm, step=step, batch=contents)
            applied = applied or finite
            means.add(sum_metrics(datums, answer))
            steps.add({k: (v, 1) for k, v in report.items()} if finite else {})
            steps.add({"loss": (answer.loss, 1)} if finite else {"skipped": (1, 1)})
        service.version += applied
        return means.means() | steps.means() | {"empty_steps": float(empty)}

    def _minibatches(self, trajectories: Sequence[Trajectory]) -> Iterator[list[Trajectory]]:
        """The trajectories of each optimizer step, split as self-hosted trainers do."""
        seed = (self.hyper_params.seed, self._step + 1)
        for rows in splits(self.config.algorithm, seed, len(trajectories)):
            yield [trajectories[row] for row in rows]

    def _datums(self, minibatch: Sequence[Trajectory], loss: NamedLoss) -> list[Datum]:
        """The datums of an optimizer step; trajectories without a gradient are left out."""
        mask = pad_rows([t.loss_mask for t in minibatch], np.float32, 0.0)
        algorithm = self.config.algorithm
        # The service sums over tokens. Its losses are proportional to the advantages, so that a
        # mean is had by scaling these.
        weights = mask
        if algorithm.aggregation != "token-sum":
            weights = aggregation_weights(mask, algorithm.aggregation, algorithm.norm_length)
        made = (
            datum_of(t, loss, row[: len(t.tokens)])
            for t, row in zip(minibatch, weights.tolist(), strict=True)
        )
        return [datum for datum in made if datum is not None]

    def _dump_contents(
        self,
        service: RemoteTrainService,
        model: str,
        datums: Sequence[Datum],
        answer: ForwardBackward,
    ) -> dict[str, Any]:
        """What :meth:`replay` needs to repeat one optimizer step."""
        return {
            "model": model,
            "phase": self.run.phase_number,
            "loss": answer.loss,
            "datums": [asdict(datum) for datum in datums],
            "service": service.state_dict(),
        }

    def replay(self, evidence: Mapping[str, Any]) -> dict[str, float]:
        """Repeat the optimizer step of a dump, from the weights that it began with.

        Returns:
            ``loss``, what the service says besides, and ``non_finite_rows``: datums whose
            log-probabilities are not finite.

        Raises:
            ConfigError: the configuration has no such trained model.
            RunError: the dumped weights do not fit it.
        """
        service = self.models[evidence["model"]].trained_by(RemoteTrainService)
        load_state(evidence["model"], service, evidence["service"])
        datums = [Datum(**datum) for datum in evidence["datums"]]
        algorithm = self.config.algorithm
        answer = service.forward_backward(
            datums, algorithm.loss_fn, algorithm.loss_fn_config
        ).result()
        metrics = mean_metrics(sum_metrics(datums, answer))
        rows = sum(not np.isfinite(row).all() for row in answer.logprobs)
        report = {"loss": answer.loss, "non_finite_rows": float(rows)}
        return metrics | service.apply() | report

    def _compute_advantage(
        self, trajectories: list[Trajectory], batch: Batch | None = None
    ) -> list[Trajectory]:
        """Give trajectories the advantages of ``algorithm.advantage``, as a batch gets them.

        Args:
            trajectories: those of a step.
            batch: the same with what the advantage reads besides; None: it is made of them.
        """
        section = self.config.algorithm.advantage
        function = self._factory.load("advantage", section, "trainer.algorithm.advantage")
        return advantages.for_trajectories(function, trajectories, section, batch)

    def set_service_holder(self, service_holder: Any) -> NoReturn:
        """Services come from the configuration.

        Raises:
            UsageError: always, with what to do instead.
        """
        raise UsageError(
            f"{type(self).__name__} takes its service from models.<name>.train; write it there, "
            "such as models.policy.train: in_process. _prepare_trajectories(trajectories, {}) "
            "needs none"
        )
