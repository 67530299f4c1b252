"""The optimizer steps of a fine-tuning job, over any train service."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from plugrl.core.errors import ContractError, NonFiniteError
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import BaseTrainService, TrainService
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, WeightedLoss
from plugrl.core.text.learn.minibatches import UNIT
from plugrl.core.text.learn.pairs import PREFERRED
from plugrl.core.text.learn.step import Aggregation, aggregation_weights
from plugrl.core.text.remote.datums import sum_metrics
from plugrl.core.text.remote.service import Datum, RemoteTrainService
from plugrl.core.text.rollout.metrics import Means
from plugrl.core.text.trajectory import Trajectory


@dataclass
class JobData:
    """The examples of a job, one list of trajectories each, with what the reference said of them.

    ``reference`` holds the log-probabilities of each trajectory's tokens under the weights that
    the job began with; None: nothing is compared with them.
    """

    examples: Sequence[Sequence[Trajectory]]
    pad_token_id: int
    reference: list[list[torch.Tensor]] | None = None

    @property
    def prefers(self) -> bool:
        """Whether the examples are preferences."""
        return any(PREFERRED in row for rows in self.examples for row in rows)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The rows of the examples ``numbers``, weighed for one optimizer step."""
        rows = [row for number in numbers for row in self.examples[number]]
        batch = Batch.from_trajectories(rows, pad_token_id=self.pad_token_id)
        mask = batch.values["loss_mask"]
        how: Aggregation = "seq-mean-token-sum" if self.prefers else "token-mean"
        batch.values[LOSS_WEIGHTS] = aggregation_weights(mask, how)
        if self.prefers:
            batch.metadata[UNIT] = torch.arange(len(numbers)).repeat_interleave(2)
        if self.reference is not None:
            said = [kept for number in numbers for kept in self.reference[number]]
            batch.values["ref_log_probs"] = torch.nn.utils.rnn.pad_sequence(said, batch_first=True)
        return batch

    def ask_reference(self, service: BaseTrainService, size: int) -> None:
        """Note the log-probabilities under the weights that ``service`` has now."""
        self.reference = []
        for start in range(0, len(self.examples), size):
            numbers = range(start, min(start + size, len(self.examples)))
            batch = self.batch_without_reference(numbers)
            found = service.compute_log_prob(batch)
            rows = iter(
                row[:length].clone()
                for row, length in zip(
                    found, batch.values["attention_mask"].sum(1).tolist(), strict=True
                )
            )
            self.reference += [[next(rows) for _ in self.examples[n]] for n in numbers]

    def batch_without_reference(self, numbers: Sequence[int]) -> Batch:
        """Like :meth:`batch`, before the reference was asked."""
        return JobData(self.examples, self.pad_token_id).batch(numbers)

    def state_dict(self) -> dict[str, Any]:
        """What the reference said."""
        return {} if self.reference is None else {"reference": self.reference}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.reference = state.get("reference")


def batches(seed: Sequence[int], count: int, size: int, epochs: int) -> list[list[int]]:
    """The numbers of the examples of each optimizer step; each epoch has an order of its own."""
    steps = []
    for epoch in range(epochs):
        order = np.random.default_rng([*seed, epoch]).permutation(count).tolist()
        steps += [order[start : start + size] for start in range(0, count, size)]
    return steps


def train_on(service: BaseTrainService, batch: Batch, loss: WeightedLoss) -> dict[str, float]:
    """One optimizer step.

    Raises:
        NonFiniteError: loss or gradient is not finite.
        ContractError: the service is of another sort.
    """
    if isinstance(service, TrainService):
        totals = service.forward_backward(batch, loss)
        report = service.optimizer_step()
    elif isinstance(service, RemoteTrainService):
        totals = _gradient_elsewhere(service, batch, loss)
        report = service.apply()
    else:
        raise ContractError(f"{type(service).__name__} cannot train fine-tuning jobs")
    means = Means()
    means.add(totals)
    found = means.means() | report
    for key in ("loss", "grad_norm"):
        if not math.isfinite(found.get(key, 0.0)):
            raise NonFiniteError(f"the {key} is {found[key]}")
    return found


def _gradient_elsewhere(
    service: RemoteTrainService, batch: Batch, loss: WeightedLoss
) -> dict[str, tuple[float, float]]:
    """The gradient of a loss, of a service that knows losses by name alone.

    The slope of a loss of preferences with respect to the log-probabilities, with its sign turned,
    goes out as the advantages of ``importance_sampling``: at a ratio of 1 its gradient is that of
    the loss.
    """
    if "ref_log_probs" not in batch.values:
        datums = list(_datums(batch, weights=batch.values[LOSS_WEIGHTS]))
        answer = service.forward_backward(datums, "cross_entropy").result()
        return {**sum_metrics(datums, answer), "loss": (answer.loss, 1.0)}
    log_probs = service.compute_log_prob(batch).requires_grad_()
    value, metrics = loss(log_probs, batch)
    (slope,) = torch.autograd.grad(value, log_probs)
    datums = list(_datums(batch, advantages=-slope, logprobs=log_probs.detach()))
    service.forward_backward(datums, "importance_sampling").result()
    return {**metrics, "loss": (float(value.detach()), 1.0)}


def _datums(batch: Batch, **inputs: torch.Tensor) -> Iterator[Datum]:
    """The rows of a batch, with numbers per token, [B, T], that a loss reads."""
    mask, ids = batch.values["loss_mask"], batch.values["input_ids"]
    for row, length in enumerate(batch.values["attention_mask"].sum(1).tolist()):
        tokens, trained = ids[row, :length].tolist(), mask[row, 1:length]
        own = {
            name: torch.where(trained != 0, values[row, 1:length], 0.0).tolist()
            for name, values in inputs.items()
        }
        yield Datum(tokens[:-1], {"target_tokens": tokens[1:], "mask": trained.tolist(), **own})
