"""The parts of Llama-shaped decoders over packed tokens, with backward passes written by hand.

Each does its work in few products and few passes over memory. Projections that share an input
are given as one matrix, into which the weight of the norm before it was multiplied. Heads turn as
complex numbers: in queries and keys the two numbers that turn together are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

_ONEDNN = None
if torch.backends.mkldnn.is_available():
    _ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
#: From so many rows on, that kernel of oneDNN gains more than it spends on its preparation.
_ONEDNN_ROWS = 512
#: The logarithm of a probability is taken where it is at least this; below, digits get lost.
_FAINT = 1e-30
#: Gradients of the arguments of a function, None where there is none.
Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Shape:
    """What the layers of a model have in common: numbers of heads, their width, the norms' eps."""

    queries: int
    keys: int
    width: int
    eps: float

    @property
    def heads(self) -> int:
        """Queries, keys and values of a token."""
        return self.queries + 2 * self.keys

    @property
    def turning(self) -> int:
        """Queries and keys of a token."""
        return self.queries + self.keys


class Gates(Function):
    """States [N, H] after a gated MLP with SiLU: norm, projections and residual included.

    ``joined`` ([2 * I, H]) gives the gate and what it is multiplied by; ``down`` ([H, I]) leads
    back.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, states: Tensor, joined: Tensor, down: Tensor) -> Tensor:
        """The states, [N, H]."""
        normed, root = rms_normed(states, eps)
        both = linear(normed, joined)
        gate, up = both.chunk(2, -1)
        opened = silu(gate)
        product = opened * up
        ctx.save_for_backward(normed, root, both, opened, product, joined, down)
        return linear(product, down).add_(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        normed, root, both, opened, product, joined, down = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        d_down = outer(gradient, product)
        d_product = linear(gradient, down.t())
        # What was kept is overwritten by gradients, in memory that the caches still hold. A second
        # backward pass is refused by autograd, which counts such changes.
        torch.mul(d_product, up, out=product)
        torch.ops.aten.silu_backward.grad_input(product, gate, grad_input=gate)
        torch.mul(d_product, opened, out=up)
        return (
            None,
            rms_norm_back(linear(both, joined.t()), normed, root).add_(gradient),
            outer(both, normed),
            d_down,
        )


class TokenLogProbs(Function):
    """Log-probabilities [P] of tokens after states [N, H]: norm and projection included.

    Token i is ``targets[i]``, predicted at ``places[i]``; ``joined`` is [V, H].
    """

    @staticmethod
    def forward(
        ctx: Any, eps: float, places: Tensor, targets: Tensor, states: Tensor, joined: Tensor
    ) -> Tensor:
        """The log-probabilities, [P]."""
        normed, root = rms_normed(states, eps)
        logits = linear(normed, joined)
        picked = places * len(joined) + targets
        probs = logits.softmax(-1)
        ctx.save_for_backward(normed, root, joined, probs, places, picked)
        chosen = probs.view(-1).index_select(0, picked)
        # Also where one is not a number.
        if not bool((chosen >= _FAINT).all()):
            return logits.log_softmax(-1).view(-1).index_select(0, picked)
        return chosen.log_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        normed, root, joined, probs, places, picked = ctx.saved_tensors
        total = gradient.new_zeros(len(normed)).index_add_(0, places, gradient)
        # In memory that is needed no more; a second backward pass is refused.
        d_logits = probs.mul_(-total[:, None])
        d_logits.view(-1).index_add_(0, picked, gradient)
        d_states = rms_norm_back(linear(d_logits, joined.t()), normed, root)
        return None, None, None, d_states, outer(d_logits, normed)


def rms_normed(values: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``values`` divided by the root of their mean square, and the inverse of that root."""
    size = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    root = size.square_().div_(values.shape[-1]).add_(eps).rsqrt_()
    return values * root, root


def rms_norm_back(gradient: Tensor, normed: Tensor, root: Tensor) -> Tensor:
    """The gradient before :func:`rms_normed`, in place."""
    along = (gradient * normed).sum(-1, keepdim=True)
    return gradient.addcmul_(normed, along, value=-1 / normed.shape[-1]).mul_(root)


def linear(values: Tensor, matrix: Tensor) -> Tensor:
    """``values @ matrix.t()``, which oneDNN computes a little faster than MKL."""
    many = values.dtype == torch.float32 and len(values) >= _ONEDNN_ROWS
    if _ONEDNN is not None and many:
        product: Tensor = _ONEDNN(values, matrix, None, "none", [], "")
        return product
    return values @ matrix.t()


def outer(gradient: Tensor, values: Tensor) -> Tensor:
    """The gradient of a matrix; the product is faster with the wider factor on the right."""
    if gradient.shape[1] <= values.shape[1]:
        return gradient.t() @ values
    return (values.t() @ gradient).t().contiguous()
