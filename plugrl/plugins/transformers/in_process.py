"""The ``in_process`` train service: the interface of training APIs over a model in this process.

It trains as the service ``local`` does, but takes datums and losses by name, so that a remote-API
trainer can be tried, tested and compared without an account.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.inference.services import ModelSpec
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.learn.losses import LOSS_WEIGHTS, Loss, WeightedLoss
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.remote.service import (
    NAMED_LOSSES,
    Datum,
    ForwardBackward,
    NamedLoss,
    RemoteTrainService,
    completed_future,
)
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.transformers.train_service import LocalTrainConfig, LocalTrainService

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

#: Numbers of the rows that a loss sees, among the datums.
_ROWS = "datum"
_HIGH = "clip_high_threshold"


def _clip_ratios(options: Mapping[str, float]) -> dict[str, float]:
    return {
        "clip_ratio_low": 1 - options["clip_low_threshold"],
        "clip_ratio_high": options[_HIGH] - 1,
    }


#: By name: plugrl's own loss, and its section as the options of the name say.
_LOSSES: dict[str, tuple[str, Callable[[Mapping[str, float]], dict[str, float]]]] = {
    "cross_entropy": ("plugrl/cross_entropy", lambda options: {}),
    "importance_sampling": ("plugrl/importance_sampling", lambda options: {}),
    "ppo": ("plugrl/clipped", _clip_ratios),
    "cispo": ("plugrl/cispo", lambda options: {"clip_ratio_high": options[_HIGH] - 1}),
}
_OFFERED = {name: NAMED_LOSSES[name] for name in _LOSSES}
# plugrl's has no lower bound, as in the paper.
_OFFERED["cispo"] = replace(NAMED_LOSSES["cispo"], options={_HIGH: 4.0})


@dataclass
class InProcessConfig(LocalTrainConfig):
    """Options of the train service ``in_process``: those of ``local``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_head:
            raise ConfigError("value_head is for the service local: no named loss trains values")


class InProcessTrainService(RemoteTrainService):
    """Takes named losses over datums and trains a ``transformers`` model with AdamW."""

    Config: ClassVar[type] = InProcessConfig
    loads_weights: ClassVar[bool] = True
    losses: ClassVar[Mapping[str, NamedLoss]] = _OFFERED
    #: Its weights are tensors, which samplers of a vendor's service do not take.
    vendor: ClassVar[None] = None

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """What the service ``local`` looks for."""
        yield from LocalTrainService.preflight(check)

    def load(self, spec: ModelSpec) -> None:
        """Load the model and make its optimizer.

        Raises:
            ConfigError: the source or the adapter cannot be used.
        """
        self._local = LocalTrainService(self.config)
        self._local.load(spec)

    def forward(self, datums: Sequence[Datum]) -> Future[list[list[float]]]:
        """The log-probability of each target of each datum, 0.0 where the mask is 0."""
        log_probs = self._local.compute_log_prob(_batch(datums, ()))
        return completed_future(_rows(log_probs, datums))

    def forward_backward(
        self,
        datums: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> Future[ForwardBackward]:
        """Add the gradient of a named loss, summed over the targets of all datums.

        Raises:
            ConfigError: there is no such loss or option.
            ContractError: a datum lacks what the loss reads.
        """
        loss = self.losses.get(loss_fn)
        if loss is None:
            raise ConfigError(f"no loss_fn {loss_fn!r}; there are: {', '.join(self.losses)}")
        options = {**loss.options, **(loss_fn_config or {})}
        if unknown := sorted(set(options) - set(loss.options)):
            raise ConfigError(f"loss_fn {loss_fn!r} has no option {unknown[0]!r}")
        name, section_of = _LOSSES[loss_fn]
        function = default_registry().get("loss", name)
        batch = _batch(datums, loss.inputs)
        log_probs = torch.zeros(batch.values["input_ids"].shape)
        section = configure(function, section_of(options))
        weighted = WeightedLoss(_keep_log_probs(function, log_probs), section)
        totals = self._local.forward_backward(batch, weighted)
        value, _ = totals.pop("loss")
        return completed_future(ForwardBackward(value, _rows(log_probs, datums), totals))

    def optim_step(self, adam: AdamParams) -> Future[Mapping[str, float]]:
        """Clip and apply the accumulated gradient; one that is not finite is dropped."""
        return completed_future(self._local.apply_gradient(adam))

    def save_weights_for_sampler(self, name: str) -> Future[Mapping[str, torch.Tensor]]:
        """The current weights, which are in this process."""
        return completed_future(self._local.weights())

    def save_state(self, name: str) -> Future[Any]:
        """Weights, optimizer and the number of optimizer steps."""
        return completed_future(self._local.state_dict())

    def load_state(self, saved: Any) -> Future[None]:
        """Take back what :meth:`save_state` gave."""
        self._local.load_state_dict(saved)
        return completed_future(None)

    def state_dict(self) -> dict[str, Any]:
        """The state of the service ``local``, so that either can go on with the other's."""
        return self._local.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._local.load_state_dict(state)
        self.optimizer_steps = self._local.optimizer_steps

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by name."""
        return self._local.weights()

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, for example by those of an earlier phase."""
        self._local.load_weights(weights)

    def export(self, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False) -> None:
        """Write weights and tokenizer as the service ``local`` does."""
        self._local.export(folder, tokenizer, adapter=adapter)


def _batch(datums: Sequence[Datum], inputs: Sequence[str]) -> Batch:
    """Datums as the rows of a batch, with what a loss reads: ``inputs``.

    Raises:
        ContractError: something is missing, or the targets are not the tokens that follow.
    """
    if not datums:
        raise ContractError("there is no datum to take a gradient of")
    batch = Batch.from_trajectories([_trajectory(datum, inputs) for datum in datums])
    batch.metadata[_ROWS] = torch.arange(len(datums))
    mask = batch.values["loss_mask"].to(torch.float32)
    batch.values[LOSS_WEIGHTS] = mask
    for name in set(inputs) - {"logprobs"}:
        numbers = torch.zeros(mask.shape)
        for row, datum in enumerate(datums):
            given = torch.tensor(datum.loss_fn_inputs[name], dtype=torch.float32)
            numbers[row, 1 : 1 + len(given)] = given
        batch.values[name if name != "weights" else LOSS_WEIGHTS] = numbers * mask
    if bool((batch.values[LOSS_WEIGHTS] < 0).any()):
        raise ContractError("a datum has weights below 0; the service in_process takes none")
    return batch


def _trajectory(datum: Datum, inputs: Sequence[str]) -> Trajectory:
    given, targets = datum.loss_fn_inputs, datum.loss_fn_inputs["target_tokens"]
    if missing := sorted(set(inputs) - set(given)):
        raise ContractError(f"a datum has no {missing[0]}, which the loss reads")
    if targets[:-1] != datum.input_tokens[1:]:
        raise ContractError("the target_tokens of a datum are not the tokens that follow its input")
    # Without a mask, what the loss is multiplied by says what is trained.
    numbers = given.get("mask") or given.get("weights") or given.get("advantages")
    mask = [1] * len(targets) if numbers is None else [int(number != 0) for number in numbers]
    logprobs = [0.0, *given["logprobs"]] if "logprobs" in inputs else None
    return Trajectory([*datum.input_tokens, targets[-1]], [0, *mask], logprobs=logprobs)


def _keep_log_probs(function: Loss, log_probs: torch.Tensor) -> Loss:
    """The loss ``function``, which writes what it is given into ``log_probs``, [datums, T], too."""

    @functools.wraps(function)
    def loss(logp: torch.Tensor, batch: Batch, config: Any) -> Any:
        rows = batch.metadata[_ROWS]
        log_probs[rows, : logp.shape[1]] = logp.detach().to("cpu", torch.float32)
        return function(logp, batch, config)

    return loss


def _rows(log_probs: torch.Tensor, datums: Sequence[Datum]) -> list[list[float]]:
    """The numbers of the targets of each datum, of [B, T] as a batch has them."""
    return [
        log_probs[row, 1 : 1 + len(datum.input_tokens)].tolist() for row, datum in enumerate(datums)
    ]
