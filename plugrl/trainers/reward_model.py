"""A reward model: a number for an answer, learnt from pairs of which one answer is preferred.

``_prepare_batch`` numbers the pairs and adds a token behind each answer, where the value head is
read. For each optimizer step, :mod:`plugrl.core.text.learn.step` runs the model over the pairs of a
minibatch, calls :func:`bradley_terry`, averages over pairs, clips the gradient and steps AdamW.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.functional import logsigmoid

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ContractError, UsageError
from plugrl.core.text.batch import Batch, compute_position_id_with_mask
from plugrl.core.text.inference.services import TrainService
from plugrl.core.text.learn.pairs import Pairs, last_token, on_last_token, row_sums
from plugrl.core.text.models import Model, Models
from plugrl.core.text.trajectory_trainer import TrajectoryTrainerConfig
from plugrl.trainers.kit import JUDGED
from plugrl.trainers.losses.preferences import pair_metrics
from plugrl.trainers.preference import PreferenceAlgorithmConfig, PreferenceTrainer

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.learn.losses import LossOutput


@dataclass
class BradleyTerryConfig:
    """Options of the loss ``bradley_terry``."""

    center_coefficient: float = described(
        0.0,
        "factor of the squared sum of a pair's rewards; 0: rewards have no fixed zero",
        at_least=0,
        at_most=1000,
    )


@traits(
    Config=BradleyTerryConfig,
    reads=("preferred",),
    needs=("values",),
    compares_pairs=True,
    takes_margins=True,
)
def bradley_terry(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The loss of each pair on the last trained token of both rows, [B, T].

    Source: InstructGPT (arXiv 2203.02155), equation 1. With r the value of an answer: loss =
    -log sigmoid(r(chosen) - r(rejected) - margin), where a pair may have a margin (Llama 2, arXiv
    2307.09288, equation 2), plus c (r(chosen) + r(rejected))^2, which centres rewards on 0 (arXiv
    2312.09244).

    A row's reward is the value of the state before its last trained token which the
    trainer adds behind the answer. Log-probabilities play no part.

    Raises:
        ContractError: the batch lacks pairs or values.
    """
    if "values" not in batch.values:
        raise ContractError(
            "loss bradley_terry needs batch.values['values'], which a train service with a value "
            "head gives; take trainer reward_model and models.<name>.train.value_head=true"
        )
    mask, pairs = batch.values["loss_mask"], Pairs.of(batch, "bradley_terry")
    rewards = row_sums(batch.values["values"], last_token(mask))
    chosen, rejected = rewards[pairs.chosen], rewards[pairs.rejected]
    margin = batch.metadata.get("margin")
    gap = chosen - rejected
    if margin is not None:
        gap = gap - margin[pairs.chosen].to(gap)
    loss = -logsigmoid(gap) + config.center_coefficient * (chosen + rejected).square()
    return on_last_token(pairs.spread(loss), mask), pair_metrics(rewards, pairs)


@dataclass
class RewardModelAlgorithmConfig(PreferenceAlgorithmConfig):
    """Algorithm options of ``reward_model``."""

    loss: Any = component("loss", bradley_terry, help="from rewards to a loss a pair")


@dataclass
class RewardModelConfig(TrajectoryTrainerConfig):
    """The trainer section of ``reward_model``."""

    algorithm: RewardModelAlgorithmConfig = described(RewardModelAlgorithmConfig, "loss and passes")


class RewardModelTrainer(PreferenceTrainer):
    """Trains a model with a value head to give preferred answers larger numbers.

    The reward of an answer is read from the last hidden state at its end-of-sequence token.
    """

    Config: ClassVar[type] = RewardModelConfig
    gives = ("preferred",)
    signal = "preferred"
    generates = False
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = {
        **JUDGED,
        "models": {"policy": {"train": {"value_head": True}}},
    }

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Besides data and models: an evaluator, which nothing asks."""
        yield from super().preflight(check)
        if check.root.rollout_worker.get("evaluator") is not None:
            yield (
                "rollout_worker.evaluator",
                "has no effect: a reward model gives no answers to be judged; leave it out",
            )

    @property
    def models(self) -> Models:
        """The models of the run; value heads keep a bias of 0, as sequence classifiers have none.

        Raises:
            UsageError: the trainer is not bound to a run.
        """
        models = super().models
        for service in models.trained.values():
            if isinstance(service, TrainService):
                service.fix_value_bias()
        return models

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Leave out what is invalid, number the pairs, and mark where answers are scored.

        Raises:
            ContractError: an answer has no judgement, or a pair lacks a side.
        """
        batch, metrics = super()._prepare_batch(batch)
        return scored_at_the_end(batch), metrics

    def _outputs(self, service: TrainService, batch: Batch) -> torch.Tensor:
        batch.values["values"] = service.compute_values(batch)
        return torch.zeros(batch.values["input_ids"].shape)

    def export(self, model: Model, folder: Path, *, adapter: bool = False) -> None:
        """Write a sequence classifier of one label, which gives the rewards.

        Raises:
            UsageError: the architecture has no such classifier, or the adapter alone is wanted.
        """
        if adapter:
            raise UsageError(
                "an adapter alone is no reward model, the head would be missing; leave --adapter "
                "out, and it is merged"
            )
        model.trained().export_scorer(folder, model.inference.tokenizer)


def scored_at_the_end(batch: Batch) -> Batch:
    """Rows with one more token, the only trained one: its state is that after the last real token.

    The token itself is never read by the model.
    """
    lengths = batch.values["attention_mask"].sum(1)
    values = {name: torch.nn.functional.pad(value, (0, 1)) for name, value in batch.values.items()}
    rows = torch.arange(len(lengths))
    trained = batch.values["loss_mask"].ne(0).any(1)
    values["loss_mask"] = torch.zeros_like(values["loss_mask"])
    values["loss_mask"][rows, lengths] = trained.long()
    values["attention_mask"][rows, lengths] = 1
    values["input_ids"][rows, lengths] = batch.metadata["pad_token_id"]
    values["position_ids"] = compute_position_id_with_mask(values["attention_mask"])
    return Batch(values, dict(batch.metadata))
