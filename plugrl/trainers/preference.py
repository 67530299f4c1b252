"""What trainers on judged answers share: units, weights, validation on held-out judgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.pick import shown_name
from plugrl.core.config.schemas.schema import component
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.data.loader import attempts_at_all
from plugrl.core.text.inference.services import TrainService
from plugrl.core.text.learn.advantages import group_numbers
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.minibatches import UNIT, PassesConfig
from plugrl.core.text.learn.pairs import PREFERRED, Pairs
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.rollout.metrics import mean_metrics
from plugrl.core.text.self_hosted import SelfHostedTrainer
from plugrl.core.text.trainer_parts import held_out
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.evaluate.validation import Validation

#: Rows that are read at once before the first step.
_READ = 256


@dataclass
class PreferenceAlgorithmConfig(PassesConfig):
    """How judged answers become a gradient."""

    loss: Any = component("loss", "dpo", help="from log-probabilities to a loss an answer")


class PreferenceTrainer(SelfHostedTrainer):
    """Trains on judged answers; nothing is sampled but for validation with an evaluator.

    The loss of a row stands on its last trained token and is averaged over rows. Rows of one
    attempt are a unit where the loss compares pairs.
    """

    uses_rewards: ClassVar[bool] = False
    score: ClassVar[str] = "accuracy"
    validates_attempts: ClassVar[bool] = False

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Data, models, and a loss that does not fit the layout of the data."""
        yield from super().preflight(check)
        loss, worker = check.component("trainer.algorithm.loss"), check.root.rollout_worker
        layout, margins = worker.get("layout"), worker.get("margin_key")
        name = shown_name(check.root.trainer.algorithm.loss, "loss")
        if layout == "labels" and _compares_pairs(loss):
            yield "rollout_worker.layout", f"is labels, and loss {name} compares pairs"
        if margins is not None and not getattr(loss, "takes_margins", False):
            yield "rollout_worker.margin_key", f"has no effect: loss {name} takes no margins"

    @cached_property
    def _loss(self) -> WeightedLoss:
        section = self.config.algorithm.loss
        return WeightedLoss(self._factory.load("loss", section, "trainer.algorithm.loss"), section)

    @property
    def _compares(self) -> bool:
        return _compares_pairs(self._loss.function)

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Leave out what is invalid and number the pairs.

        Raises:
            ContractError: an answer has no judgement, or a pair lacks a side.
        """
        batch = batch.select(batch.metadata["valid"].nonzero().flatten())
        if PREFERRED not in batch.metadata:
            raise ContractError(
                f"{type(self).__name__} needs judged answers: trajectories with the extra field "
                "`preferred`, 1.0 or 0.0; take rollout_worker preference, or set the field"
            )
        if self._compares:
            attempt = zip(
                batch.metadata["group_id"], batch.metadata["run_id"].tolist(), strict=True
            )
            batch.metadata[UNIT] = group_numbers(list(attempt))
            Pairs.of(batch, self._loss.name)
        return batch, {}

    @property
    def rows_per_unit(self) -> int:
        """Both answers of a pair."""
        return 2 if self._compares else 1

    def _dry_run_rows(self, batch: Batch) -> Batch:
        rows = torch.arange(len(batch))
        batch.metadata |= {
            PREFERRED: (rows + 1) % 2,
            "group_id": [str(row // 2) for row in rows.tolist()],
            "run_id": torch.zeros_like(rows),
        }
        return batch

    def _weights(self, loss_mask: torch.Tensor) -> torch.Tensor:
        return aggregation_weights(loss_mask, "seq-mean-token-sum")

    def _set_up(self) -> None:
        super()._set_up()
        self._read_all(self._loader.items)

    def _check_layout(self, trajectories: Sequence[Trajectory]) -> None:
        """Refuse single answers where the loss compares pairs.

        Raises:
            ConfigError: an attempt gave one answer.
        """
        groups = Counter(trajectory.group_id for trajectory in trajectories if trajectory.valid)
        if self._compares and any(count == 1 for count in groups.values()):
            raise ConfigError(
                f"data: rows hold one answer with a label, and loss {self._loss.name} compares a "
                "chosen with a rejected one; write trainer.algorithm.loss=kto"
            )

    def _read_all(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Make every row's trajectories once, so that a fault is found before the first step."""
        prompts = self._attempts(items, "data")
        for start in range(0, len(prompts), _READ):
            read = self._rollouts.collect(prompts[start : start + _READ], 0, self._sampling)
            self._check_layout(read)

    def _attempts(self, items: Sequence[Mapping[str, Any]], name: str) -> list[Prompt]:
        data = self.hyper_params.data
        return attempts_at_all(items, name, 1, (data.prompt_key, data.answer_key))

    def _make_validation(self) -> Validation | None:
        if not self.hyper_params.validate.enabled:
            return None
        worker = type(self._rollouts.worker)
        found = held_out(self.hyper_params, self.scenario_instance, self._validated_splits, worker)
        judged = {split: self._attempts(items, split) for split, items in found.items()}
        sampled = None
        if self.hyper_params.rollout_worker.get("evaluator") is not None:
            sampled = super()._make_validation()
        made: Any = PreferenceValidation(self, judged, sampled)
        return made

    def held_out(self, prompts: Sequence[Prompt]) -> Batch:
        """The judged answers to ``prompts``, prepared as a training batch is.

        Raises:
            ConfigError: a row is not what the worker expects.
        """
        trajectories = self._rollouts.collect(prompts, 0, self._sampling)
        batch, _ = self._prepare_for_loss(self._batch_of(trajectories))
        batch.values[LOSS_WEIGHTS] = self._weights(batch.values["loss_mask"])
        return batch

    def measure(self, batch: Batch) -> dict[str, float]:
        """The loss and its metrics on a prepared batch, under the current weights."""
        service = self.models[batch.metadata["model"]].trained()
        batch = self._before_optimizer_step(batch)
        value, metrics = self._loss(self._outputs(service, batch), batch)
        return mean_metrics(metrics) | {"loss": float(value)}

    def _outputs(self, service: TrainService, batch: Batch) -> torch.Tensor:
        """The log-probabilities that the loss reads, [B, T], and in ``batch`` what else it does."""
        return service.compute_log_prob(batch)


class PreferenceValidation:
    """Metrics of the loss on held-out judgements, and of sampled answers where they are judged.

    Args:
        trainer: measures.
        judged: rows by split; the split is the prefix of its metrics.
        sampled: asks the model; None: nothing judges its answers.
    """

    def __init__(
        self,
        trainer: PreferenceTrainer,
        judged: Mapping[str, Sequence[Prompt]],
        sampled: Validation | None,
    ) -> None:
        self._trainer = trainer
        self._judged = judged
        self._sampled = sampled
        self._batches: dict[str, Batch] = {}

    def __call__(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Metrics named ``<split>/<name>``, and the sampled trajectories."""
        metrics, trajectories = ({}, []) if self._sampled is None else self._sampled(step)
        for split, prompts in self._judged.items():
            if split not in self._batches:
                self._batches[split] = self._trainer.held_out(prompts)
            found = self._trainer.measure(self._batches[split])
            metrics |= {f"{split}/{name}": value for name, value in found.items()}
        return metrics, trajectories


def _compares_pairs(loss: Any) -> bool:
    return bool(getattr(loss, "compares_pairs", True))
