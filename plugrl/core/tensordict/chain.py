"""Linear layers in a row as one operation of autograd, with a backward pass written by hand.

Small networks spend most of their time beside their numbers: each layer and activation is a module
that is called, a node of autograd that is made, and one that is run. A chain of them is one node,
which does the same products in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from plugrl.core.tensordict.fast_tanh import is_plain

if TYPE_CHECKING:
    from plugrl.core.tensordict.parts import Link


class LinearChain:
    """Links in a row; calling it maps ``[..., inputs]`` to ``[..., outputs]``.

    The weights are those of the modules at the time of the call.

    Args:
        body: the module that the first links were found in.
        links: the layers; none: what was asked for is no chain, and nothing is accepted.
    """

    def __init__(self, body: nn.Module, links: Sequence[Link]) -> None:
        self.body = body
        self._layers = [link.linear for link in links]
        self._activations = [link.activation for link in links]

    def accepts(self, x: torch.Tensor) -> bool:
        """Whether ``x`` has rows of plain numbers of the weights' type, and no layer a hook."""
        layers = self._layers
        return (
            bool(layers)
            and x.ndim > 1
            and x.dtype == layers[0].weight.dtype
            and is_plain(x)
            and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What the modules would give for ``x``, for which :meth:`accepts` is true."""
        tensors: list[torch.Tensor] = []
        for layer in self._layers:
            tensors += (layer.weight, layer.bias)
        rows = x if x.ndim == 2 else x.flatten(0, -2)
        if torch.is_grad_enabled():
            outputs: torch.Tensor = _Chain.apply(rows, self._activations, *tensors)  # type: ignore[no-untyped-call]
        else:
            outputs = _forward(rows, self._activations, tensors)[-1]
        return outputs if x.ndim == 2 else outputs.view(*x.shape[:-1], -1)


def _forward(
    x: torch.Tensor, activations: Sequence[str | None], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """``x [B, inputs]`` and what each layer made of it."""
    passed = [x]
    for activation, weight, bias in zip(activations, tensors[::2], tensors[1::2], strict=True):
        x = functional.linear(x, weight, bias)
        if activation == "relu":
            x.relu_()
        elif activation == "tanh" and x.device.type == "cpu":
            numbers = x.detach().numpy()
            np.tanh(numbers, numbers)
        elif activation == "tanh":
            x.tanh_()
        passed.append(x)
    return passed


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activations: Sequence[str | None], *tensors: torch.Tensor
    ) -> torch.Tensor:
        passed = _forward(x, activations, tensors)
        ctx.activations = activations
        ctx.save_for_backward(*tensors, *passed)
        return passed[-1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        count = 2 * len(ctx.activations)
        tensors, passed = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[2:])
        if torch.is_grad_enabled():
            found = _differentiable(gradient, ctx.activations, tensors, passed[0], needed)
        else:
            found = _backward(gradient, ctx.activations, tensors, passed, needed)
        return found[0], None, *found[1:]


def _backward(
    gradient: torch.Tensor,
    activations: Sequence[str | None],
    tensors: Sequence[torch.Tensor],
    passed: Sequence[torch.Tensor],
    needed: Sequence[bool],
) -> list[torch.Tensor | None]:
    """The gradients of the input and of each weight and bias, as far as they are needed."""
    found: list[torch.Tensor | None] = [None] * (len(tensors) + 1)
    lowest = needed.index(True)
    for i in reversed(range(len(activations))):
        if activations[i] == "tanh" and i < len(activations) - 1:
            # A product of the layer above, which nothing else reads.
            torch.ops.aten.tanh_backward.grad_input(gradient, passed[i + 1], grad_input=gradient)
        elif activations[i] == "tanh":
            gradient = torch.ops.aten.tanh_backward(gradient, passed[i + 1])
        elif activations[i] == "relu":
            gradient = torch.ops.aten.threshold_backward(gradient, passed[i + 1], 0)
        if needed[2 * i + 1]:
            # The narrower factor goes first, which for observations of few numbers is far quicker.
            narrow = passed[i].shape[1] < gradient.shape[1]
            found[2 * i + 1] = (
                (passed[i].t() @ gradient).t() if narrow else gradient.t() @ passed[i]
            )
        if needed[2 * i + 2]:
            found[2 * i + 2] = gradient.sum(0)
        if lowest > 2 * i:
            return found
        gradient = gradient @ tensors[2 * i]
    found[0] = gradient
    return found


def _differentiable(
    gradient: torch.Tensor,
    activations: Sequence[str | None],
    tensors: Sequence[torch.Tensor],
    x: torch.Tensor,
    needed: Sequence[bool],
) -> list[torch.Tensor | None]:
    """As :func:`_backward`, by operations that can be differentiated again."""
    output = x
    for activation, weight, bias in zip(activations, tensors[::2], tensors[1::2], strict=True):
        output = functional.linear(output, weight, bias)
        if activation is not None:
            output = torch.tanh(output) if activation == "tanh" else torch.relu(output)
    wanted = [tensor for tensor, need in zip((x, *tensors), needed, strict=True) if need]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return [next(found) if need else None for need in needed]
