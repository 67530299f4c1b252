"""``RemoteTrainService``: trains a model somewhere else, with losses that it knows by name.

It is the interface of training APIs: sequences go out as datums, the service takes
the gradient of one of its losses, and an optimizer step follows. Every call gives a future, since
services are reached over a network.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plugrl.core.errors import ContractError, UsageError
from plugrl.core.text.inference.services import BaseTrainService, InferenceService
from plugrl.core.text.learn.optimizer import AdamParams, OptimizerConfig

if TYPE_CHECKING:
    import torch

    from plugrl.core.text.batch import Batch

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Datum:
    """A sequence of N + 1 tokens as a service of named losses takes it: N predictions.

    Position i of every list is about the token ``target_tokens[i]``, given the input tokens up to
    i.

    Args:
        input_tokens: all tokens but the last.
        loss_fn_inputs: lists of N numbers by name: ``target_tokens``, all tokens but the first;
            ``mask``, 1 where the target is trained; and what the loss reads, see
            :attr:`NamedLoss.inputs`, 0.0 where nothing is trained.

    Raises:
        ValueError: the lengths disagree, or there are no targets.
    """

    input_tokens: list[int]
    loss_fn_inputs: dict[str, list[Any]]

    def __post_init__(self) -> None:
        if "target_tokens" not in self.loss_fn_inputs:
            raise ValueError("a datum has no target_tokens")
        for name, values in self.loss_fn_inputs.items():
            if len(values) != len(self.input_tokens):
                raise ValueError(
                    f"a datum has {len(values)} {name} for {len(self.input_tokens)} input tokens"
                )


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """A loss that a service knows by name; it sums over the targets of all datums.

    Args:
        inputs: what a datum has for it besides targets and mask.
        options: its numbers (``loss_fn_config``) with their defaults.
        scales: whether advantages times a positive number give the loss times that number, so
            that a trainer can average over tokens or sequences by scaling the advantages.
    """

    inputs: tuple[str, ...]
    options: Mapping[str, float] = field(default_factory=dict)
    scales: bool = True


#: Losses by the names that training APIs have for them. With r = exp(logp - logprobs), per target:
#: ``cross_entropy`` -weights * logp; ``importance_sampling`` -advantages * r; ``ppo``
#: -min(r * advantages, clip(r, low, high) * advantages); ``cispo`` -clip(r, low, high) *
#: advantages * logp, with a detached ratio; ``dro`` -(advantages * logp - beta / 2 * log(r)^2).
NAMED_LOSSES: dict[str, NamedLoss] = {
    "cross_entropy": NamedLoss(("weights",)),
    "importance_sampling": NamedLoss(("logprobs", "advantages")),
    "ppo": NamedLoss(
        ("logprobs", "advantages"), {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    ),
    "cispo": NamedLoss(
        ("logprobs", "advantages"), {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}
    ),
    "dro": NamedLoss(("logprobs", "advantages"), {"beta": 0.05}, scales=False),
}


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """What a service says of the gradient that it took.

    Args:
        loss: the sum over all targets.
        logprobs: of each datum, the log-probability of each target under the weights before the
            optimizer step.
        metrics: others that the service has, as (sum, count).
    """

    loss: float
    logprobs: list[list[float]]
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def completed_future(value: Value) -> Future[Value]:
    """A future that has its value."""
    future: Future[Value] = Future()
    future.set_result(value)
    return future


class RemoteTrainService(BaseTrainService):
    """Trains one model with named losses over datums; subclass it for a training API.

    Log-probabilities are those of temperature 1. ``losses`` is read before a service is built,
    so that a configuration can be checked without a connection.
    """

    Config: ClassVar[type] = OptimizerConfig
    serves: ClassVar[str] = "remote-API trainers, such as remote_api_grpo"
    #: The losses that it offers, by name.
    losses: ClassVar[Mapping[str, NamedLoss]] = {}
    #: Optimizer steps that were applied.
    optimizer_steps: int = 0

    @abstractmethod
    def forward(self, datums: Sequence[Datum]) -> Future[list[list[float]]]:
        """The log-probability of each target of each datum; no gradient is taken.

        Where the mask is 0, there may be 0.0.
        """

    @abstractmethod
    def forward_backward(
        self,
        datums: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> Future[ForwardBackward]:
        """Add the gradient of a named loss, summed over the targets of all datums."""

    @abstractmethod
    def optim_step(self, adam: AdamParams) -> Future[Mapping[str, float]]:
        """Apply the accumulated gradient once; gives ``grad_norm`` where the service knows it.

        A gradient that is not finite is dropped: nothing is applied.
        """

    @abstractmethod
    def save_weights_for_sampler(
        self, name: str
    ) -> Future[Mapping[str, torch.Tensor]] | Future[str]:
        """The weights for the sampler: tensors, or the path under which they are kept."""

    @abstractmethod
    def save_state(self, name: str) -> Future[Any]:
        """What :meth:`load_state` needs to go on exactly: plain values and tensors.

        It is kept in checkpoints; a service that keeps weights and optimizer itself gives the
        path of what it saved.
        """

    @abstractmethod
    def load_state(self, saved: Any) -> Future[None]:
        """Take back what :meth:`save_state` gave."""

    def apply(self) -> dict[str, float]:
        """One :meth:`optim_step` as the section says; gives its metrics and the learning rate."""
        adam = AdamParams.at(self.config, self.optimizer_steps)
        report = dict(self.optim_step(adam).result())
        if math.isfinite(report.get("grad_norm", 0.0)):
            self.optimizer_steps += 1
        return {"learning_rate": adam.learning_rate, **report}

    def compute_log_prob(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the batch's tokens, [B, T], 0.0 where ``loss_mask`` is 0."""
        import torch

        ids, mask = batch.values["input_ids"], batch.values["loss_mask"].clone()
        # Nothing predicts the first token.
        mask[:, 0] = 0
        lengths = batch.values["attention_mask"].sum(1).tolist()
        rows = [row for row, length in enumerate(lengths) if length > 1]
        tokens = [ids[row, : lengths[row]].tolist() for row in rows]
        datums = [
            Datum(
                sequence[:-1],
                {"target_tokens": sequence[1:], "mask": mask[row, 1 : lengths[row]].tolist()},
            )
            for row, sequence in zip(rows, tokens, strict=True)
        ]
        found = self.fitting(datums, self.forward(datums).result())
        result = torch.zeros(ids.shape, dtype=torch.float32)
        for row, logprobs in zip(rows, found, strict=True):
            result[row, 1 : lengths[row]] = torch.tensor(logprobs)
        return torch.where(mask != 0, result, 0.0)

    def fitting(
        self, datums: Sequence[Datum], logprobs: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        """The log-probabilities, one for each target of each datum.

        Raises:
            ContractError: the service gave other numbers of them.
        """
        wanted = [len(datum.input_tokens) for datum in datums]
        given = [len(row) for row in logprobs]
        if given != wanted:
            raise ContractError(
                f"{type(self).__name__} gave {sum(given)} log-probabilities for {len(given)} of "
                f"{len(wanted)} datums with {sum(wanted)} targets; one for each is expected"
            )
        return [list(row) for row in logprobs]

    def sync_to(self, inference: InferenceService) -> None:
        """Give the current weights to the sampler, as tensors or by the path they are kept at."""
        saved = self.save_weights_for_sampler(f"version-{self.version}").result()
        if isinstance(saved, str):
            inference.use_saved_weights(saved, self.version)
        else:
            inference.update_weights(saved, self.version)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by name, where they can be had.

        Raises:
            UsageError: they stay in the service.
        """
        raise UsageError(f"the weights stay in {type(self).__name__}; they cannot be handed over")

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, where that can be done.

        Raises:
            UsageError: the service takes none.
        """
        raise UsageError(f"{type(self).__name__} takes no weights of another phase")

    def state_dict(self) -> dict[str, Any]:
        """What the service saved, and the number of optimizer steps."""
        saved = self.save_state(f"state-{self.version}").result()
        return {"saved": saved, "optimizer_steps": self.optimizer_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.load_state(state["saved"]).result()
        self.optimizer_steps = int(state["optimizer_steps"])
