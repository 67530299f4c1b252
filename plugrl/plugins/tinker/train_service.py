"""The train service ``tinker``: trains a LoRA adapter that a service of the Tinker API keeps."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.inference.services import InferenceService, ModelSpec
from plugrl.core.text.learn.optimizer import AdamParams, OptimizerConfig
from plugrl.core.text.remote.connection import RemoteConnection
from plugrl.core.text.remote.losses import loss_value
from plugrl.core.text.remote.service import (
    NAMED_LOSSES,
    Datum,
    ForwardBackward,
    NamedLoss,
    RemoteTrainService,
    completed_future,
)
from plugrl.core.text.remote.settings import RemoteSettings
from plugrl.plugins.tinker import wire
from plugrl.plugins.tinker.connection import Connection, plain
from plugrl.plugins.tinker.inference_service import SAMPLER
from plugrl.plugins.transformers.outline import context_length

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

Value = TypeVar("Value")
#: What a later phase begins with, by this name.
STATE = "state"
_FORWARD = NAMED_LOSSES["cross_entropy"]
#: Log-probabilities of the targets of each datum, and metrics.
_Given = tuple[list[list[float]], Mapping[str, float]]


@dataclass
class AdapterTrainConfig(RemoteSettings, OptimizerConfig):
    """The adapter that a service trains, and how long it keeps what it saved."""

    lora_rank: int = described(32, "rank of the adapter", at_least=1, at_most=10**5)
    train_mlp: bool = described(True, "the adapter covers the layers between attentions")
    train_attn: bool = described(True, "the adapter covers attention")
    train_unembed: bool = described(True, "the adapter covers the last layer")
    start_from: str | None = described(
        None,
        "saved state whose weights come first, a path of the service; null: the base model",
    )
    state_ttl: int | None = described(
        None,
        "seconds that the service keeps the states of checkpoints; null: for ever",
        at_least=1,
        at_most=10**9,
    )
    sampler_ttl: int | None = described(
        86400,
        "seconds that the service keeps weights it sampled from; null: for ever",
        at_least=1,
        at_most=10**9,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_path("start_from")


@dataclass
class TinkerTrainConfig(AdapterTrainConfig):
    """Options of the train service ``tinker``."""

    key_example: ClassVar[str] = Connection.default_key
    scheme: ClassVar[str] = "tinker://"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise ConfigError("one of train_mlp, train_attn and train_unembed must be true")


class TinkerTrainService(RemoteTrainService):
    """Sends datums and takes optimizer steps; weights and optimizer stay at the service."""

    Config: ClassVar[type] = TinkerTrainConfig
    losses: ClassVar[Mapping[str, NamedLoss]] = NAMED_LOSSES
    connection: ClassVar[type[RemoteConnection]] = Connection
    #: The name of the services of this sort.
    vendor: ClassVar[str] = Connection.vendor

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Settings that are missing, and an adapter, which the service makes itself."""
        yield from cls.connection.findings(check)
        name = check.path.split(".")[1]
        if check.models[name].get("adapter") is not None:
            yield (
                f"models.{name}.adapter",
                f"the service {cls.vendor} trains an adapter of its own; write "
                f"{check.path}.lora_rank",
            )
        yield from cls._sampler_findings(check)

    @classmethod
    def _sampler_findings(cls, check: Preflight) -> Iterator[Finding]:
        """An inference service that takes tensors alone, which this service does not give."""
        path = f"models.{check.path.split('.')[1]}.inference"
        sampler = check.component(path)
        if sampler is not None and sampler.use_saved_weights is InferenceService.use_saved_weights:
            yield (
                path,
                f"{sampler.__name__} cannot sample from weights that the service {cls.vendor} "
                f"keeps; write type: {cls.vendor}, with the base_url of {check.path}",
            )

    def load(self, spec: ModelSpec) -> None:
        """Connect, and let the service make an adapter.

        Raises:
            ConfigError: the key or the model's name is wrong.
            RunError: the service cannot be reached, or makes none.
        """
        self._connection = self.connection.shared(self.config)
        self._calls = self._connection.calls(self.config)
        self._context = self._connection.shortest_context(
            self.config, context_length(spec.source), self._calls
        )
        self._training: Any = self._calls.call(
            f"make an adapter of rank {self.config.lora_rank} for {self.config.base_model}",
            lambda: self._create_client(self._connection.client, spec.seed & 0x7FFFFFFF),
        )
        if self.config.start_from:
            self._load(self.config.start_from, optimizer=False).result()

    def _create_client(self, client: Any, seed: int) -> Any:
        config = self.config
        return client.create_lora_training_client(
            base_model=config.base_model,
            rank=config.lora_rank,
            seed=seed,
            train_mlp=config.train_mlp,
            train_attn=config.train_attn,
            train_unembed=config.train_unembed,
        )

    def forward(self, datums: Sequence[Datum]) -> Future[list[list[float]]]:
        """The log-probability of each target of each datum."""
        self._check_lengths(datums)
        sent = self._training.forward(
            wire.as_datums(wire.for_forward(datums), _FORWARD), "cross_entropy"
        )
        return self._then("compute log-probabilities", sent, wire.logprobs_of)

    def forward_backward(
        self,
        datums: Sequence[Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, float] | None = None,
    ) -> Future[ForwardBackward]:
        """Add the gradient of a named loss.

        The loss that is reported is worked out here, from the log-probabilities of the answer.

        Raises:
            ConfigError: there is no such loss, or a sequence is too long.
            ContractError: a datum lacks what the loss reads.
        """
        loss = self.losses.get(loss_fn)
        if loss is None:
            raise ConfigError(f"no loss_fn {loss_fn!r}; there are: {', '.join(self.losses)}")
        self._check_lengths(datums)
        for datum in datums:
            if missing := sorted(set(loss.inputs) - set(datum.loss_fn_inputs)):
                raise ContractError(f"a datum has no {missing[0]}, which the loss reads")
        options = dict(loss_fn_config or {})
        what = f"take the gradient of {loss_fn}"

        def answered(given: _Given) -> ForwardBackward:
            logprobs, metrics = given
            value = loss_value(loss_fn, options, datums, self.fitting(datums, logprobs))
            return ForwardBackward(value, logprobs, {k: (v, 1.0) for k, v in metrics.items()})

        sent, read = self._gradient(datums, loss, loss_fn, options)
        return self._then(what, sent, lambda answer: answered(read(answer)))

    def _gradient(
        self, datums: Sequence[Datum], loss: NamedLoss, loss_fn: str, options: dict[str, float]
    ) -> tuple[Any, Callable[[Any], _Given]]:
        """A request for a gradient, and what gives log-probabilities and metrics of its answer."""
        sent = self._training.forward_backward(
            wire.as_datums(datums, loss), loss_fn, options or None
        )
        return sent, lambda output: (wire.logprobs_of(output), wire.metrics_of(output.metrics))

    def optim_step(self, adam: AdamParams) -> Future[Mapping[str, float]]:
        """Apply the accumulated gradient."""
        from tinker import types

        params = types.AdamParams(
            learning_rate=adam.learning_rate,
            beta1=adam.betas[0],
            beta2=adam.betas[1],
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip_norm=adam.grad_clip_norm,
        )
        sent = self._training.optim_step(params)
        return self._then(
            "take an optimizer step", sent, lambda answer: wire.metrics_of(answer.metrics)
        )

    def save_weights_for_sampler(self, name: str) -> Future[str]:
        """The path of the current weights, for the inference service of the same vendor."""
        sent = self._training.save_weights_for_sampler(
            unique(name), ttl_seconds=self.config.sampler_ttl
        )
        return self._then("save weights for sampling", sent, lambda answer: str(answer.path))

    def _save(self, name: str) -> Future[str]:
        """The path of weights and optimizer, saved under a name that was not used before."""
        sent = self._training.save_state(name, ttl_seconds=self.config.state_ttl)
        return self._then("save its state", sent, lambda answer: str(answer.path))

    def _load(self, path: str, *, optimizer: bool) -> Future[None]:
        training = self._training
        load = training.load_state_with_optimizer if optimizer else training.load_state
        return self._then(f"load {path}", load(path), lambda _: None)

    def save_state(self, name: str) -> Future[Any]:
        """Where weights and optimizer are, which stay at the service."""
        about = {"base_model": self.config.base_model, "lora_rank": self.config.lora_rank}
        return completed_future({"path": self._save(unique(name)).result(), **about})

    def load_state(self, saved: Any) -> Future[None]:
        """Take back what :meth:`save_state` gave, as far as the service keeps it.

        Raises:
            ConfigError: it is the state of another model, rank or service.
        """
        if not isinstance(saved, Mapping) or "path" not in saved:
            raise ConfigError(f"the saved state is not one of the train service {self.vendor}")
        for name in ("base_model", "lora_rank"):
            if saved[name] != self.config[name]:
                raise ConfigError(
                    f"the saved state has {name}={saved[name]!r} and the configuration "
                    f"{self.config[name]!r}; restore it, or start a new run"
                )
        return self._load(saved["path"], optimizer=True)

    def export_weights(self) -> Mapping[str, Any]:
        """The saved paths from which a later phase begins; they keep the session open."""
        held = self._connection.hold_path
        return {
            STATE: held(self._save(unique("handed")).result()),
            SAMPLER: held(self.save_weights_for_sampler("handed").result()),
        }

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Begin with the weights of an earlier phase, and a new optimizer.

        Raises:
            ConfigError: another service trained them.
        """
        if STATE not in handed:
            raise ConfigError(
                "the phase before trained this model with another service, whose weights the "
                f"service {self.vendor} does not take; train both phases with it"
            )
        self._load(handed[STATE], optimizer=False).result()

    def _then(self, what: str, sent: Any, take: Callable[[Any], Value]) -> Future[Value]:
        return self._calls.deferred_result(what, plain(sent), take)

    def _check_lengths(self, datums: Sequence[Datum]) -> None:
        longest = max((len(datum.input_tokens) + 1 for datum in datums), default=0)
        if self._context is not None and longest > self._context:
            raise ConfigError(
                f"a sequence of {longest} tokens is longer than the {self._context} of the model's "
                "context; lower rollout_worker.max_prompt_length or max_response_length"
            )


def unique(name: str) -> str:
    """A name that the service has not seen: it refuses to save under one twice."""
    return f"{re.sub(r'[^a-zA-Z0-9_-]', '-', name)}-{secrets.token_hex(4)}"
