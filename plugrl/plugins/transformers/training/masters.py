"""Float32 copies of weights that are held in a lower precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from plugrl.core.config.view import ConfigView


def type_fault(source: ConfigView) -> str | None:
    """Why weights of this data type cannot be trained, with the remedy; None if they can."""
    if source.dtype != "float16":
        return None
    return (
        "gradients of float16 are lost below 6e-8, and losses are not scaled here; "
        "set bfloat16, or float32"
    )


class MasterWeights:
    """Holds float32 copies of parameters: they take the gradients and the optimizer's updates.

    An update smaller than the resolution of bfloat16 would be rounded away; the copies keep it.
    The gradient of each backward pass is added to the copy's in float32 at once, and the one in
    low precision is freed.

    Args:
        parameters: what is trained, by name.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._weights = dict(parameters)
        self.copies = {
            name: torch.nn.Parameter(_float32(weight)) for name, weight in parameters.items()
        }
        for name, weight in self._weights.items():
            weight.register_post_accumulate_grad_hook(_Accumulate(self.copies[name]))

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the copies into the weights, after an optimizer step."""
        for name, weight in self._weights.items():
            weight.copy_(self.copies[name])

    @torch.no_grad()
    def read_weights(self) -> None:
        """Take the current weights as the new master weights."""
        for name, weight in self._weights.items():
            self.copies[name].copy_(weight)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The copies by name."""
        return {name: copy.detach() for name, copy in self.copies.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take back what :meth:`state_dict` gave."""
        for name, copy in self.copies.items():
            copy.copy_(state[name])


class _Accumulate:
    """Moves the gradient of a weight to its float32 copy."""

    def __init__(self, copy: torch.nn.Parameter) -> None:
        self._copy = copy

    def __call__(self, weight: torch.Tensor) -> None:
        gradient = weight.grad
        if gradient is None:
            return
        if self._copy.grad is None:
            self._copy.grad = _float32(gradient)
        else:
            self._copy.grad.add_(gradient)
        weight.grad = None


def _float32(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to(torch.float32, copy=True)
