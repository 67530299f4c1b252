"""Frozen linear layers whose weights take a byte a number, or half of one, by torchao."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.core.config.view import ConfigView
    from plugrl.plugins.transformers.merging import Product

_MISSING = 'needs the package torchao, which is not installed: pip install "plugrl[torchao]"'
#: Numbers that share a scale in NF4, and scales that share one at most (Dettmers et al., 2023).
_GROUP, _SCALES = 64, 256
#: Scales that share one, at least: of fewer, their own range says nothing.
_LEAST_SCALES = 8


def quantization_fault(model: ConfigView) -> str | None:
    """Why a model cannot be quantised as its section says, with the remedy; None: it may be."""
    if model.source.get("quantization") is None:
        return None
    if find_spec("torchao") is None:
        return _MISSING
    services = {"inference": "transformers", "train": "local", "fine_tune": None}
    for part, wanted in services.items():
        section = model.get(part)
        if section is not None and str(section.get("type")).rpartition("/")[2] != wanted:
            # Jobs train all weights, or adapters of their own.
            right = f"{part}: {wanted}" if wanted else "train: local"
            return f"is for {right}; set that, or leave quantization out"
    if model.get("train") is not None and model.get("adapter") is None:
        return "quantised weights are not trained; give the model an adapter"
    return None


class QuantizedLinear(torch.nn.Linear):
    """A linear layer with a frozen weight in few bits, which products read in full precision.

    What the weight is made of are buffers, which are in no state. A backward pass makes the weight
    again, so that none is kept for it.

    Args:
        layer: what it replaces, with its weight where it is to be computed.
        kind: as of ``source.quantization``.

    Attributes:
        dtype: of the weight that products read.
    """

    def __init__(self, layer: torch.nn.Linear, kind: str) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype, self._kind = layer.weight.dtype, kind
        self.bias = layer.bias
        for name, part in _FORMATS[kind][0](layer.weight).items():
            self.register_buffer(name, part, persistent=False)
        self._names = tuple(name for name, _ in self.named_buffers())
        #: What an adapter adds, as an engine has it; None: nothing.
        self.product: Product | None = None

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """Device and type of the weight, which peft asks a layer for, and none of its numbers."""
        return torch.empty(0, device=next(self.buffers()).device, dtype=self.dtype)

    def parts(self) -> dict[str, torch.Tensor]:
        """What the weight is made of, by name."""
        return {name: getattr(self, name) for name in self._names}

    @torch.no_grad()
    def weight_now(self) -> torch.Tensor:
        """The weight that products read, [out, in]."""
        return _weight(self._kind, self.out_features, self.dtype, *self.parts().values())

    @torch.no_grad()
    def load(self, weight: torch.Tensor) -> None:
        """Take another weight, quantised anew."""
        given = weight.to(next(iter(self.parts().values())).device)
        self.load_parts(_FORMATS[self._kind][0](given))

    @torch.no_grad()
    def load_parts(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Take back what :meth:`parts` gave."""
        for name, part in self.parts().items():
            part.copy_(parts[name])

    @torch.no_grad()
    def add(self, product: Product) -> bool:
        """Add what an adapter does to each product; whether that is new to the layer."""
        held = self.product
        if held is None:
            self.product = product.to(device=next(self.buffers()).device, copy=True)
            return True
        held.down.copy_(product.down)
        held.up.copy_(product.up)
        return False

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The product with the weight, the bias, and what an adapter adds."""
        parts = self.parts().values()
        result: torch.Tensor = _Times.apply(given, self._kind, self.out_features, *parts)
        if self.bias is not None:
            result = result + self.bias
        product = self.product
        if product is None:
            return result
        # As peft computes it, so that samples have the probabilities that are trained.
        exact = given.to(product.down.dtype)
        change = linear(linear(exact, product.down), product.up) * product.scaling
        return (result + change).to(result.dtype)


class _Times(torch.autograd.Function):
    """The product of states with a weight that is made for it, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, kind: str, rows: int, *parts: torch.Tensor
    ) -> torch.Tensor:
        ctx.kind, ctx.rows = kind, rows
        ctx.save_for_backward(*parts)
        return linear(given, _weight(kind, rows, given.dtype, *parts))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = ctx.saved_tensors
        weight = _weight(ctx.kind, ctx.rows, gradient.dtype, *parts)
        return gradient @ weight, None, None, *(None for _ in parts)


def quantize(model: PreTrainedModel, kind: str, device: str, where: str) -> None:
    """Quantise the linear layers of a model but its head, in place and one after the other.

    Args:
        model: in the data type that it is to be computed in.
        kind: as of ``source.quantization``.
        device: on which each layer is quantised.
        where: the place in the configuration, for messages.

    Raises:
        ConfigError: torchao is not installed, or there is no layer that can be quantised.
    """
    if find_spec("torchao") is None:
        raise ConfigError(f"{where} {_MISSING}")
    head = model.get_output_embeddings()
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and layer is not head
    ]
    if not found:
        raise ConfigError(
            f"{where}: a {model.config.model_type} model has no linear layers to quantise; leave "
            "quantization out"
        )
    for name, layer in found:
        layer.to(device)
        try:
            made = QuantizedLinear(layer, kind)
        except ValueError as error:
            raise ConfigError(f"{where}: {name} {error}") from error
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made)


def quantized_layers(model: torch.nn.Module) -> dict[str, QuantizedLinear]:
    """The quantised layers of a model by the names that they have without an adapter."""
    return {
        name.removesuffix(".base_layer"): layer
        for name, layer in model.named_modules()
        if isinstance(layer, QuantizedLinear)
    }


class FrozenWeights(Mapping[str, torch.Tensor]):
    """Weights some of which are quantised: the products of these are made when asked for.

    Args:
        plain: weights by name.
        quantized: layers by name, each of which has a further weight.
    """

    def __init__(
        self, plain: Mapping[str, torch.Tensor], quantized: Mapping[str, QuantizedLinear]
    ) -> None:
        self._plain = plain
        self._quantized = {f"{name}.weight": layer for name, layer in quantized.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._plain[name] if name in self._plain else self._quantized[name].weight_now()

    def __iter__(self) -> Iterator[str]:
        yield from self._plain
        yield from self._quantized

    def __len__(self) -> int:
        return len(self._plain) + len(self._quantized)


def num_parameters(model: PreTrainedModel) -> int:
    """The parameters of a model, quantised ones too."""
    quantized = quantized_layers(model).values()
    return int(model.num_parameters()) + sum(q.in_features * q.out_features for q in quantized)


def _weight(kind: str, rows: int, dtype: torch.dtype, *parts: torch.Tensor) -> torch.Tensor:
    return _FORMATS[kind][1](*parts).view(rows, -1).to(dtype)


@torch.no_grad()
def _to_int8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Whole numbers up to 127 with a scale for each row."""
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        quantize_affine,
    )

    exact, block = weight.float(), (1, weight.shape[1])
    scale, zero = choose_qparams_affine(exact, MappingType.SYMMETRIC, block, torch.int8)
    codes = quantize_affine(exact, block, scale, zero, torch.int8)
    return {"codes": codes, "scale": scale.view(-1, 1)}


def _from_int8(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return codes * scale


@torch.no_grad()
def _to_nf4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sixteen quantiles of a normal distribution; scales of 64 numbers in 8 bits.

    Raises:
        ValueError: there are too few numbers for scales of scales, or they do not divide.
    """
    try:
        from torchao.quantization import to_nf4
    except ImportError:  # before 0.18
        from torchao.dtypes.nf4tensor import to_nf4

    scales, rest = divmod(weight.numel(), _GROUP)
    shared = next((n for n in (_SCALES, 64, 16, _LEAST_SCALES) if scales % n == 0), None)
    if rest or shared is None:
        raise ValueError(
            f"has {weight.numel()} numbers, which is no multiple of {_GROUP * _LEAST_SCALES} as "
            "nf4 needs; set int8"
        )
    held = to_nf4(weight.float().contiguous(), _GROUP, shared)
    table = held.nf4
    return {
        "codes": held.quantized_data,
        "scales": held.quantized_scalers,
        "factor": held.quantization_factor,
        "mean": held.scaler_mean.view(1),
        # What each byte says, which is two numbers.
        "pairs": torch.stack([table.repeat_interleave(16), table.repeat(16)], 1),
    }


def _from_nf4(
    codes: torch.Tensor,
    scales: torch.Tensor,
    factor: torch.Tensor,
    mean: torch.Tensor,
    pairs: torch.Tensor,
) -> torch.Tensor:
    numbers = pairs.index_select(0, codes.int()).view(-1, _GROUP)
    return numbers * ((scales.view(len(factor), -1) / factor[:, None]).view(-1, 1) + mean)


_Pack = Callable[[torch.Tensor], dict[str, torch.Tensor]]
#: What makes the parts of a weight, and a weight of its parts, by ``source.quantization``.
_FORMATS: dict[str, tuple[_Pack, Callable[..., torch.Tensor]]] = {
    "int8": (_to_int8, _from_int8),
    "nf4": (_to_nf4, _from_nf4),
}
