"""The train service ``weaver``: trains a model that a Weaver service keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ContractError
from plugrl.core.text.learn.optimizer import AdamParams
from plugrl.core.text.remote.connection import RemoteConnection
from plugrl.core.text.remote.service import Datum, NamedLoss
from plugrl.plugins.tinker import wire
from plugrl.plugins.tinker.train_service import AdapterTrainConfig, TinkerTrainService, unique
from plugrl.plugins.weaver.connection import Connection

#: The pass that gives log-probabilities and takes no gradient.
_FORWARD = "forward_logprob"


@dataclass
class WeaverTrainConfig(AdapterTrainConfig):
    """Options of the train service ``weaver``."""

    key_example: ClassVar[str] = Connection.default_key
    scheme: ClassVar[str] = "weaver://"

    training_mode: Literal["lora", "full_ft"] = described(
        "lora", "an adapter, or all weights of the model"
    )


class WeaverTrainService(TinkerTrainService):
    """Does what the service ``tinker`` does, over the kit of Weaver."""

    Config: ClassVar[type] = WeaverTrainConfig
    connection: ClassVar[type[RemoteConnection]] = Connection
    vendor: ClassVar[str] = Connection.vendor

    def _create_client(self, client: Any, seed: int) -> Any:
        from weaver import types

        config = self.config
        lora = types.LoraConfig(
            rank=config.lora_rank,
            seed=seed,
            train_mlp=config.train_mlp,
            train_attn=config.train_attn,
            train_unembed=config.train_unembed,
        )
        return client.create_model(
            base_model=config.base_model, training_mode=config.training_mode, lora_config=lora
        )

    def forward(self, datums: Sequence[Datum]) -> Future[list[list[float]]]:
        """The log-probability of each target of each datum."""
        self._check_lengths(datums)
        data = _as_datums(datums, ())
        training = self._training
        return self._then(
            what := "compute log-probabilities",
            self._calls.begin(what, lambda: training.forward(data, _FORWARD)),
            lambda result: _logprobs(data, result),
        )

    def _gradient(
        self, datums: Sequence[Datum], loss: NamedLoss, loss_fn: str, options: dict[str, float]
    ) -> tuple[Any, Callable[[Any], tuple[list[list[float]], Mapping[str, float]]]]:
        data, training = _as_datums(datums, loss.inputs), self._training
        sent = self._calls.begin(
            f"take the gradient of {loss_fn}",
            lambda: training.forward_backward(data, loss_fn, loss_fn_config=options or None),
        )
        return sent, lambda result: (_logprobs(data, result), _metrics(result))

    def optim_step(self, adam: AdamParams) -> Future[Mapping[str, float]]:
        """Apply the accumulated gradient."""
        from weaver import types

        params = types.AdamParams(
            learning_rate=adam.learning_rate,
            beta1=adam.betas[0],
            beta2=adam.betas[1],
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip_norm=adam.grad_clip_norm,
        )
        training = self._training
        return self._then(
            what := "take an optimizer step",
            self._calls.begin(what, lambda: training.optim_step(params)),
            _metrics,
        )

    def save_weights_for_sampler(self, name: str) -> Future[str]:
        """The path of the current weights, for the inference service ``weaver``."""
        training, seconds = self._training, self.config.sampler_ttl
        name = unique(name)
        return self._then(
            what := "save weights for sampling",
            self._calls.begin(
                what, lambda: training.save_weights_for_sampler(name=name, ttl_seconds=seconds)
            ),
            str,
        )

    def _save(self, name: str) -> Future[str]:
        training, seconds = self._training, self.config.state_ttl
        return self._then(
            what := "save its state",
            self._calls.begin(
                what,
                lambda: training.save_state(
                    name=name, checkpoint_type="weight_and_optimizer", ttl_seconds=seconds
                ),
            ),
            lambda checkpoint: str(checkpoint.path),
        )

    def _load(self, path: str, *, optimizer: bool) -> Future[None]:
        training = self._training
        load = training.load_state_with_optimizer if optimizer else training.load_state
        return self._then(
            what := f"load {path}", self._calls.begin(what, lambda: load(path)), lambda _: None
        )


def _as_datums(datums: Sequence[Datum], inputs: Sequence[str]) -> list[Any]:
    """Datums of the kit, with the mask and what the loss reads."""
    from weaver import types

    made = []
    for datum in datums:
        given = datum.loss_fn_inputs
        mask = given.get("mask") or [1] * len(datum.input_tokens)
        values = {name: [float(value) for value in given[name]] for name in inputs}
        made.append(
            types.Datum(
                model_input=types.ModelInput.from_ints(list(datum.input_tokens)),
                loss_fn_inputs={
                    "target_tokens": list(given["target_tokens"]),
                    "loss_mask": [float(value) for value in mask],
                    **values,
                },
            )
        )
    return made


def _logprobs(data: Sequence[Any], result: Any) -> list[list[float]]:
    """The log-probabilities of the targets.

    Raises:
        ContractError: the answer has none.
    """
    from weaver import attach_loss_fn_outputs

    try:
        answered = attach_loss_fn_outputs(data, result, field_map={"logprobs": "answered"})
    except (ValueError, TypeError, AttributeError) as error:
        raise ContractError(
            f"the weaver service gave no log-probabilities of the targets: {error}"
        ) from error
    return [[float(v) for v in datum.loss_fn_inputs["answered"].tolist()] for datum in answered]


def _metrics(result: Any) -> dict[str, float]:
    found = result.get("metrics") if isinstance(result, Mapping) else None
    if not found and isinstance(result, Mapping) and isinstance(result.get("result"), Mapping):
        found = result["result"].get("metrics")
    plain = {k: v for k, v in (found or {}).items() if isinstance(v, (int, float))}
    return wire.metrics_of(plain)
