"""LoRA adapters: small trained matrices beside frozen weights, made with ``peft``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.wording import did_you_mean
from plugrl.plugins.transformers.merging import MergedWeights, Product
from plugrl.plugins.transformers.outline import layer_names
from plugrl.plugins.transformers.quantization import (
    FrozenWeights,
    QuantizedLinear,
    quantized_layers,
)
from plugrl.plugins.transformers.training.spread import assign

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.inference.services import ModelSpec

_NAME = "default"
_MISSING = 'needs the package peft, which is not installed: pip install "plugrl[lora]"'


def adapter_findings(check: Preflight) -> Iterator[Finding]:
    """An adapter of the model whose service is asked that cannot be made here."""
    name = check.path.split(".")[1]
    if check.root.models[name].get("adapter") is not None and find_spec("peft") is None:
        yield f"models.{name}.adapter", _MISSING
    section = check.root.models[name].get("adapter")
    if section is None or section.target_modules == "auto":
        return
    layers = layer_names(check.root.models[name].source)
    lasts = sorted({layer.rpartition(".")[2] for layer in layers if layer[-1:].isalpha()})
    for number, wanted in enumerate(section.target_modules):
        if layers and not any(f".{layer}".endswith(f".{wanted}") for layer in layers):
            close = did_you_mean(wanted, lasts, 1) or f"; layers are: {', '.join(lasts)}"
            yield (
                f"models.{name}.adapter.target_modules[{number}]",
                f"the model has no layer {wanted!r}{close}",
            )


class Adapter:
    """The LoRA adapter of a model; the model's own weights are frozen.

    Args:
        model: gets the adapter in place: its class and its ``forward`` stay.
        spec: names the adapter's section and the seed of its random weights.

    Raises:
        ConfigError: ``peft`` is not installed, or the section does not fit the model.
    """

    def __init__(self, model: PreTrainedModel, spec: ModelSpec) -> None:
        section = self._section = spec.adapter
        self._model, self._spec = model, spec
        where = f"models.{spec.name}.adapter"
        if find_spec("peft") is None:
            raise ConfigError(f"{where} {_MISSING}")
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        auto = section.target_modules == "auto"
        self._peft = LoraConfig(
            task_type="CAUSAL_LM",
            r=section.r,
            lora_alpha=section.alpha,
            lora_dropout=section.dropout,
            target_modules="all-linear" if auto else list(section.target_modules),
        )
        with self._seeded(), warnings.catch_warnings():
            # It warns of transposed matrices and shared weights, which are seen to here.
            warnings.simplefilter("ignore", UserWarning)
            try:
                inject_adapter_in_model(self._peft, model, _NAME)
            except ValueError as error:
                raise ConfigError(f"{where}.target_modules: {first_line(error)}") from error
        self._layers: dict[str, Any] = {
            name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)
        }
        _check_layers(self._layers, model, f"{where}.target_modules")
        self._quantized = quantized_layers(model)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by the names that the model has for it."""
        return {n: p for n, p in self._model.named_parameters() if p.requires_grad}

    def _seeded(self) -> Any:
        return _Seeded(self._spec.seed, self._spec.device)

    def set_dropout(self, active: bool) -> None:
        """Switch the adapter's dropout; that of the model itself stays off."""
        for layer in self._layers.values():
            layer.lora_dropout.train(active)

    def merged_weights(self) -> MergedWeights:
        """All weights of the model by their own names, with the adapter's product added.

        They are computed apart, in float32: the frozen weights stay as they are, bit for bit.
        """
        return MergedWeights(self.base(), self.products())

    def untouched(self) -> dict[str, torch.Tensor]:
        """The frozen weights to which the adapter adds nothing, but quantised ones, by name."""
        held = self._plain()
        return {n: w for n, w in held.items() if n.removesuffix(".weight") not in self._layers}

    def products(self) -> dict[str, Product]:
        """What the adapter adds to the weights, by their own names."""
        return {
            f"{prefix}.weight": Product(
                layer.lora_A[_NAME].weight.detach(),
                layer.lora_B[_NAME].weight.detach(),
                float(layer.scaling[_NAME]),
                # GPT-2 keeps its matrices the other way round.
                bool(layer.fan_in_fan_out),
            )
            for prefix, layer in self._layers.items()
        }

    def base(self) -> Mapping[str, torch.Tensor]:
        """The frozen weights by the names they have without an adapter."""
        return FrozenWeights(self._plain(), self._quantized) if self._quantized else self._plain()

    def base_state(self) -> dict[str, torch.Tensor]:
        """What :meth:`load_base` takes back exactly: of quantised weights what they are made of."""
        return self._plain() | {
            f"{prefix}.{part}": value
            for prefix, layer in self._quantized.items()
            for part, value in layer.parts().items()
        }

    def _plain(self) -> dict[str, torch.Tensor]:
        state = self._model.state_dict()
        return {own: state[held] for own, held in self._names().items()}

    @torch.no_grad()
    def load_base(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the frozen weights and begin with a new adapter, which changes nothing yet.

        Weights of quantised layers are quantised anew, if they are whole.

        Raises:
            RuntimeError: a weight is missing, has no place or another shape.
        """
        names = self._names()
        if weights.keys() not in (self.base().keys(), self.base_state().keys()):
            odd = ", ".join(sorted(weights.keys() ^ self.base().keys())[:3])
            raise RuntimeError(f"weights do not fit the model: {odd}")
        held = {names[own]: weights[own] for own in names}
        self._model.load_state_dict(held, strict=False)
        for prefix, layer in self._quantized.items():
            if f"{prefix}.weight" in weights:
                layer.load(weights[f"{prefix}.weight"])
            else:
                layer.load_parts({part: weights[f"{prefix}.{part}"] for part in layer.parts()})
        with self._seeded():
            for layer in self._layers.values():
                # As peft begins.
                down, up = layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight
                drawn = torch.empty(down.shape, dtype=down.dtype, device=down.device)
                torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
                assign(down, drawn)
                up.zero_()

    def _names(self) -> dict[str, str]:
        """The name in the model's state of each frozen weight, by its own name."""
        return {
            held.replace(".base_layer.", "."): held
            for held in self._model.state_dict()
            if not _is_adapter(held)
        }

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The adapter's weights alone, by the names that ``peft`` writes to its files."""
        return {_file_name(name): value.detach() for name, value in self.parameters.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take back what :meth:`state_dict` gave."""
        for name, value in self.parameters.items():
            assign(value, state[_file_name(name)])

    def save(self, folder: str | Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write the adapter to ``folder`` as ``PeftModel.from_pretrained`` reads it.

        ``weights`` are those of :meth:`state_dict`, where a caller has them already.
        """
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._peft.save_pretrained(str(folder))
        held = self.state_dict() if weights is None else weights
        tensors = {name: value.cpu().contiguous() for name, value in held.items()}
        save_file(tensors, folder / "adapter_model.safetensors")


class _Seeded:
    """Draw from a seed without changing the global random generators."""

    def __init__(self, seed: int, device: str) -> None:
        self._seed = seed
        self._fork = torch.random.fork_rng(devices=[] if device == "cpu" else [device])

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._fork.__exit__(*error)


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def _file_name(name: str) -> str:
    return f"base_model.model.{name.replace(f'.{_NAME}.', '.')}"


def _check_layers(layers: Mapping[str, Any], model: PreTrainedModel, where: str) -> None:
    """Refuse layers into which an adapter cannot be merged.

    Raises:
        ConfigError: a layer is no linear one, or shares its weight with another.
    """
    shared: dict[int, int] = {}
    for _, weight in model.named_parameters(remove_duplicate=False):
        shared[id(weight)] = shared.get(id(weight), 0) + 1
    for name, layer in layers.items():
        if not layer.lora_A:
            raise ConfigError(f"{where}: {name} is no linear layer; leave it out")
        base = layer.get_base_layer()
        if not isinstance(base, QuantizedLinear) and shared[id(base.weight)] > 1:
            raise ConfigError(f"{where}: {name} shares its weight with another layer; leave it out")
