"""Linear layers that are given the same input, as one product.

For few tokens, a product takes as long as its launch, so that three of one input take three times
as long. ``transformers`` gives these layers the same input in every family that names them so;
whether a model does is found by trying, as for all of the engine's bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Children of a module that are given the same input, in the order in which they are called.
_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def place_side_by_side(model: PreTrainedModel) -> None:
    """Let the weights of such layers stand side by side in memory; their values stay."""
    for layers in _groups(model):
        for name in ("weight", "bias"):
            parts = [getattr(layer, name) for layer in layers]
            if any(part is None for part in parts):
                continue
            joined = torch.cat([part.data for part in parts])
            for part, own in zip(parts, joined.split([len(p) for p in parts]), strict=True):
                part.data = own


class JoinedProjections:
    """The groups of such layers of a model whose weights stand side by side."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers: list[Any] = []
        for layers in _groups(model):
            weight, bias = (
                _joined([getattr(layer, name) for layer in layers]) for name in ("weight", "bias")
            )
            if weight is None or (bias is None and layers[0].bias is not None):
                continue
            results: list[torch.Tensor] = []
            for layer in layers:
                layer.joined_results = results
            first: Any = layers[0]
            first.joined_weight, first.joined_bias = weight, bias
            first.joined_sizes = [layer.out_features for layer in layers]
            self._layers += layers

    def __bool__(self) -> bool:
        return bool(self._layers)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute each group by one product within the block."""
        for layer in self._layers:
            whole = "joined_weight" in vars(layer)
            layer.forward = MethodType(_all_of_group if whole else _next_of_group, layer)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward


def _all_of_group(self: Any, given: torch.Tensor) -> torch.Tensor:
    product = linear(given, self.joined_weight, self.joined_bias)
    own, *others = product.split(self.joined_sizes, -1)
    self.joined_results.extend(others)
    return own


def _next_of_group(self: Any, given: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = self.joined_results.pop(0)
    return result


def _groups(model: PreTrainedModel) -> Iterator[list[torch.nn.Linear]]:
    for module in model.modules():
        for names in _NAMES:
            layers = [getattr(module, name, None) for name in names]
            # Those with adapters or quantised weights are of classes of their own.
            if all(type(layer) is torch.nn.Linear for layer in layers):
                yield layers  # type: ignore[misc]


def _joined(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """One tensor over all ``parts``; None: they do not stand side by side."""
    there = [part.detach() for part in parts if part is not None]
    if len(there) < len(parts) or not all(part.is_contiguous() for part in there):
        return None
    memory, first = there[0].untyped_storage().data_ptr(), there[0]
    place = first.data_ptr()
    for part in there:
        if part.data_ptr() != place or part.untyped_storage().data_ptr() != memory:
            return None
        place += part.nbytes
    return first.as_strided((sum(map(len, there)), *first.shape[1:]), first.stride())
