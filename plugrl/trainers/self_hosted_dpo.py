"""Direct Preference Optimization, on one page (arXiv 2305.18290).

A step, from top to bottom:

1. The rollout worker gives the judged answers of some prompts, nothing is sampled.
   ``_prepare_batch`` numbers their pairs and adds the log-probabilities of the reference model.
2. For each optimizer step, :mod:`plugrl.core.text.learn.step` takes the pairs of a minibatch, runs
   the model over them and calls :func:`dpo` with the log-probability of every token.
3. The same file averages over pairs, takes the gradient over all micro-batches, clips it and steps
   AdamW.

The losses ``ipo`` and ``kto`` train in this trainer too. A copy of this file is an algorithm of
your own: named in ``trainer.custom_trainer_module_path``, it trains with the loss of the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch.nn.functional import logsigmoid

from plugrl.core.component import traits
from plugrl.core.config.pick import shown_name
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.pairs import Pairs, on_last_token, row_sums
from plugrl.core.text.learn.reference import FrozenModels, ReferenceScores
from plugrl.core.text.models import Models
from plugrl.core.text.preflight import model_findings
from plugrl.core.text.trajectory_trainer import TrajectoryTrainerConfig
from plugrl.trainers.kit import FROZEN, JUDGED
from plugrl.trainers.losses.kto import KL_REFERENCE, mismatched_batch
from plugrl.trainers.losses.preferences import fill_probe, pair_metrics
from plugrl.trainers.preference import PreferenceAlgorithmConfig, PreferenceTrainer

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.learn.losses import LossOutput

#: The value of ``reference`` that does without one.
NO_REFERENCE = "none"


@dataclass
class DpoConfig:
    """Options of the loss ``dpo``."""

    beta: float = described(
        0.1, "how strongly the policy is held to the reference", above=0, at_most=1000
    )
    label_smoothing: float = described(
        0.0, "share of preferences that are taken to be wrong", at_least=0, below=0.5
    )


@traits(
    Config=DpoConfig,
    reads=("ref_log_probs", "preferred"),
    compares_pairs=True,
    fill_probe=fill_probe,
)
def dpo(logp: torch.Tensor, batch: Batch, config: Any) -> LossOutput:
    """The loss of each pair on the last trained token of both rows, [B, T], and metrics.

    Source: equation 7. With h = (log p(chosen) - log ref(chosen)) - (log p(rejected) -
    log ref(rejected)), each the sum over the answer's tokens: loss = -(1 - e) log sigmoid(beta h) -
    e log sigmoid(-beta h). With e > 0 it supposes that a share e of the preferences is wrong
    (conservative DPO; E. Mitchell, "A note on DPO with noisy preferences", 2023).

    Raises:
        ContractError: a unit of the batch is not a chosen and a rejected answer.
    """
    mask = batch.values["loss_mask"]
    pairs = Pairs.of(batch, "dpo")
    logratio = row_sums(logp - batch.values["ref_log_probs"], mask)
    logits = config.beta * (logratio[pairs.chosen] - logratio[pairs.rejected])
    smoothing = config.label_smoothing
    loss = -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)
    # Both rows hold their pair's loss, so that the mean over rows is that over pairs.
    per_token = on_last_token(pairs.spread(loss), mask)
    return per_token, pair_metrics(config.beta * logratio, pairs)


@dataclass
class DpoAlgorithmConfig(PreferenceAlgorithmConfig):
    """Algorithm options of ``self_hosted_dpo``."""

    loss: Any = component("loss", dpo, help="from log-probabilities to a loss an answer")
    reference: str = described(
        "reference", "a frozen model, a key of `models`; none: only likelihoods are compared"
    )
    reference_weights: Literal["source", "policy"] = described(
        "source", "the reference's weights: its own, or those that the policy begins with"
    )


@dataclass
class SelfHostedDpoConfig(TrajectoryTrainerConfig):
    """The trainer section of ``self_hosted_dpo``."""

    algorithm: DpoAlgorithmConfig = described(DpoAlgorithmConfig, "loss, reference and passes")


class SelfHostedDpoTrainer(PreferenceTrainer):
    """Makes preferred answers likelier and others less likely, relative to a reference model.

    The reference scores each row once. What it said belongs to the checkpoints.
    """

    Config: ClassVar[type] = SelfHostedDpoConfig
    gives = ("ref_log_probs", "preferred")
    signal = "preferred"
    #: Sections with which the conformance kit trains it: the reference has other weights.
    conformance: ClassVar[Mapping[str, Any]] = {**JUDGED, "models": {"reference": FROZEN}}

    def __init__(self, config: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self._scores: ReferenceScores | None = None
        self._reference_weights: dict[str, torch.Tensor] | None = None

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """A reference that there is not or that is trained, and steps that are too small."""
        yield from super().preflight(check)
        algorithm = check.root.trainer.algorithm
        name, path = algorithm.reference, "trainer.algorithm.reference"
        needs_point = getattr(check.component("trainer.algorithm.loss"), "needs_reference_point", 0)
        loss = shown_name(algorithm.loss, "loss")
        if name == NO_REFERENCE:
            if needs_point:
                yield path, f"is none, and loss {loss} needs a reference model"
            if algorithm.reference_weights == "policy":
                yield "trainer.algorithm.reference_weights", "has no effect: reference is none"
        else:
            yield from model_findings(check, path, name, role="a reference")
            yield from _weights_findings(check, algorithm)
        if needs_point and check.root.data.batch_size // algorithm.minibatches < 2:
            yield (
                "data.batch_size",
                f"loss {loss} estimates its reference point from answers to other "
                "prompts, so an optimizer step needs at least 2 rows",
            )

    def _set_up(self) -> None:
        super()._set_up()
        algorithm = self.config.algorithm
        if algorithm.reference_weights != "policy" or algorithm.reference == NO_REFERENCE:
            return
        if self._reference_weights is None:
            policy = self.models[self.hyper_params.rollout_worker.model].trained()
            self._reference_weights = {
                name: weight.detach().cpu().clone() for name, weight in policy.weights().items()
            }
        self._set_reference()

    def _set_reference(self) -> None:
        if self._reference_weights is not None:
            reference = self.models[self.config.algorithm.reference].inference
            reference.update_weights(self._reference_weights, 0)

    def loaded_models(self) -> Models:
        """The models with the weights of the loaded state; they are not trained further."""
        models = super().loaded_models()
        if self._pending_state is not None:
            self._take_reference(self._pending_state)
            self._set_reference()
        return models

    def _prepare_batch(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Leave out what is invalid, number the pairs, and ask the reference.

        Raises:
            ContractError: an answer has no judgement, or a pair lacks a side.
        """
        batch, metrics = super()._prepare_batch(batch)
        batch.values["ref_log_probs"] = self._reference_log_probs(batch)
        return batch, metrics

    def _reference_log_probs(self, batch: Batch, *, keep: bool = True) -> torch.Tensor:
        if self.config.algorithm.reference == NO_REFERENCE:
            return torch.zeros(batch.values["input_ids"].shape)
        if self._scores is None:
            self._scores = self._new_scores()
        self._frozen.checked_service(self.config.algorithm.reference, batch)
        return self._scores.log_probs(batch, keep=keep)

    @cached_property
    def _frozen(self) -> FrozenModels:
        return FrozenModels(self.models)

    def _new_scores(self) -> ReferenceScores:
        return ReferenceScores(self.models[self.config.algorithm.reference].inference)

    def _before_optimizer_step(self, part: Batch) -> Batch:
        if not getattr(self._loss.function, "needs_reference_point", False):
            return part
        part.metadata[KL_REFERENCE] = self._reference_point(part)
        return part

    def _reference_point(self, part: Batch) -> float:
        """The mean log-ratio of prompts with answers to others, at least 0."""
        limit = self.models[part.metadata["model"]].inference.max_sequence_length
        other = mismatched_batch(part, limit)
        if other is None:
            return 0.0
        service = self.models[part.metadata["model"]].trained()
        ratios = service.compute_log_prob(other) - self._reference_log_probs(other, keep=False)
        return max(0.0, float(row_sums(ratios, other.values["loss_mask"]).mean()))

    def state_dict(self) -> dict[str, Any]:
        """What every trajectory trainer keeps, and what the reference said."""
        state = super().state_dict()
        if self._scores is not None:
            state["reference_scores"] = self._scores.state_dict()
        if self._reference_weights is not None:
            state["reference_weights"] = self._reference_weights
        return state

    def _apply(self, state: Mapping[str, Any]) -> None:
        super()._apply(state)
        self._take_reference(state)

    def _take_reference(self, state: Mapping[str, Any]) -> None:
        if "reference_weights" in state:
            self._reference_weights = dict(state["reference_weights"])
        if "reference_scores" in state:
            self._scores = self._new_scores()
            self._scores.load_state_dict(state["reference_scores"])


def _weights_findings(check: Preflight, algorithm: Any) -> Iterator[Finding]:
    """A reference that cannot take the policy's weights, as far as configurations show."""
    names = check.root.rollout_worker.get("model"), algorithm.reference
    if algorithm.reference_weights != "policy" or not all(name in check.models for name in names):
        return
    policy, reference = (check.models[name].source.config for name in names)
    differing = [
        key for key in policy if policy[key] != reference.get(key) and "initializer" not in key
    ]
    if policy and reference and differing:
        yield (
            "trainer.algorithm.reference_weights",
            f"is policy, and the models differ in source.config.{differing[0]}: "
            f"{policy[differing[0]]!r} and {reference.get(differing[0])!r}; give both one "
            "configuration, or write source",
        )
