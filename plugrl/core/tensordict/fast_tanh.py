"""A tanh that is quick on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

#: The fewest numbers for which NumPy is quicker, without gradients and with them: a Python
#: function of autograd costs some microseconds itself.
FEWEST, FEWEST_WITH_GRADIENT = 256, 8192


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        # Differentiable itself, so that second derivatives are exact too.
        return torch.ops.aten.tanh_backward(gradient, y)  # type: ignore[no-any-return]


def fast_tanh(x: torch.Tensor) -> torch.Tensor:
    """``torch.tanh`` by NumPy's vectorised one, where that is quicker and possible."""
    differentiated = torch.is_grad_enabled() and x.requires_grad
    fewest = FEWEST_WITH_GRADIENT if differentiated else FEWEST
    if x.numel() < fewest or x.device.type != "cpu" or not is_plain(x):
        return torch.tanh(x)
    if differentiated:
        return _Tanh.apply(x)  # type: ignore[no-any-return, no-untyped-call]
    return torch.from_numpy(np.tanh(x.detach().numpy()))


def is_plain(x: torch.Tensor) -> bool:
    """Whether ``x`` has numbers that NumPy can read: it is not traced, batched or half."""
    return (
        type(x) is torch.Tensor
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
    )


class FastTanh(nn.Module):
    """``torch.nn.Tanh``, computed by :func:`fast_tanh`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``tanh(x)``."""
        return fast_tanh(x)
