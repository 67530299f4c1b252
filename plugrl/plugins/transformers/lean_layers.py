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


@dataclass(frozen=True)
class Plan:
    """Where the heads of N packed tokens lie in B rows of T columns, of which M tokens go on.

    Args:
        gather: which of [N * heads] are the queries [B, queries, T], the keys and the values
            [B, keys, T].
        back: which of [B * queries * T] are the outputs [M, queries].
        spread: which of [(M + 1) * queries] belong to [B, queries, T]: the inverse of ``back``,
            with M for what no token asks.
        own: the inverse of ``gather`` for the one place of a head in its own row, [N * heads].
        others: the places of keys and values outside of it, numbers of [B, heads, T].
        source: which of the given states is that of each token, [N]; None: they are in order.
        kept: which of the given states is that of each token that goes on, [M]; None: as before.
        turns: the turns of queries, with the scale of the scores, and keys: complex,
            [N, queries + keys, D / 2].
        mask: what is added to scores, [queries / keys * T, T].
    """

    gather: Tensor
    back: Tensor
    spread: Tensor
    own: Tensor
    others: Tensor
    source: Tensor | None
    kept: Tensor | None
    turns: Tensor
    mask: Tensor


class Attention(Function):
    """States [M, H] after attention over states: norm, projections and residual included.

    States are given for N tokens, or once for equal ones: only the turns make a difference of them.

    ``joined`` ([heads * D, H]) and ``bias`` (or None) give queries, keys and values; ``head_norms``
    ([queries + keys, D] or None) are weights of norms over single heads; ``out`` is the projection.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shape: Shape,
        plan: Plan,
        states: Tensor,
        joined: Tensor,
        bias: Tensor | None,
        head_norms: Tensor | None,
        out: Tensor,
    ) -> Tensor:
        """The states, [M, H]."""
        normed, root = _normed(states, shape.eps)
        heads = _product(normed, joined)
        if bias is not None:
            heads += bias
        turning = heads.view(len(states), shape.heads, shape.width)[:, : shape.turning]
        single: tuple[Tensor | None, Tensor | None] = (None, None)
        if head_norms is not None:
            single = _normed(turning, shape.eps)
            torch.mul(single[0], head_norms, out=turning)
        if plan.source is not None:
            heads = heads.index_select(0, plan.source)
            turning = heads.view(-1, shape.heads, shape.width)[:, : shape.turning]
        _turn(turning, plan.turns)
        length = plan.mask.shape[1]
        # Queries that share keys stand below each other.
        queries, keys, values = _split(
            heads.view(-1, shape.width).index_select(0, plan.gather), shape, length
        )
        scores = torch.baddbmm(plan.mask, queries, keys.transpose(1, 2)).softmax(-1)
        seen = torch.bmm(scores, values).view(-1, shape.width)
        seen = seen.index_select(0, plan.back).view(-1, out.shape[1])
        ctx.shape, ctx.plan, ctx.with_bias = shape, plan, bias is not None
        ctx.save_for_backward(
            normed, root, joined, out, head_norms, *single, queries, keys, values, scores, seen
        )
        rest = states if plan.kept is None else states.index_select(0, plan.kept)
        return _product(seen, out).add_(rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        shape, plan = ctx.shape, ctx.plan
        normed, root, joined, out, *single, queries, keys, values, scores, seen = ctx.saved_tensors
        # One row more, of zeros, for what no token has asked.
        d_seen = gradient.new_empty(len(gradient) + 1, out.shape[1])
        d_seen[:-1] = _product(gradient, out.t())
        d_seen[-1] = 0
        d_seen = d_seen.view(-1, shape.width).index_select(0, plan.spread).view(queries.shape)
        d_scores = torch._softmax_backward_data(
            torch.bmm(d_seen, values.transpose(1, 2)), scores, -1, scores.dtype
        )
        d_parts = gradient.new_empty(len(plan.gather), shape.width)
        d_queries, d_keys, d_values = _split(d_parts, shape, plan.mask.shape[1])
        torch.bmm(d_scores, keys, out=d_queries)
        torch.bmm(d_scores.transpose(1, 2), queries, out=d_keys)
        torch.bmm(scores.transpose(1, 2), d_seen, out=d_values)
        d_heads = d_parts.index_select(0, plan.own)
        if len(plan.others):
            shared = plan.gather[plan.others, None].expand(-1, shape.width)
            d_heads.scatter_add_(0, shared, d_parts.index_select(0, plan.others))
        d_heads = d_heads.view(-1, shape.heads, shape.width)
        _turn(d_heads[:, : shape.turning], plan.turns.conj())
        if plan.source is not None:
            d_heads = _summed(d_heads, plan.source, len(normed))
        d_head_norms = _head_norms_back(d_heads[:, : shape.turning], *single)
        d_heads = d_heads.view(len(normed), -1)
        rest = gradient if plan.kept is None else _summed(gradient, plan.kept, len(normed))
        return (
            None,
            None,
            _norm_back(_product(d_heads, joined.t()), normed, root).add_(rest),
            _outer(d_heads, normed),
            d_heads.sum(0) if ctx.with_bias else None,
            d_head_norms,
            _outer(gradient, seen),
        )


class Gates(Function):
    """States [N, H] after a gated MLP with SiLU: norm, projections and residual included.

    ``joined`` ([2 * I, H]) gives the gate and what it is multiplied by; ``down`` ([H, I]) leads
    back.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, states: Tensor, joined: Tensor, down: Tensor) -> Tensor:
        """The states, [N, H]."""
        normed, root = _normed(states, eps)
        both = _product(normed, joined)
        gate, up = both.chunk(2, -1)
        opened = silu(gate)
        product = opened * up
        ctx.save_for_backward(normed, root, both, opened, product, joined, down)
        return _product(product, down).add_(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        normed, root, both, opened, product, joined, down = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        d_down = _outer(gradient, product)
        d_product = _product(gradient, down.t())
        # What was kept is overwritten by gradients, in memory that the caches still hold. A second
        # backward pass is refused by autograd, which counts such changes.
        torch.mul(d_product, up, out=product)
        torch.ops.aten.silu_backward.grad_input(product, gate, grad_input=gate)
        torch.mul(d_product, opened, out=up)
        return (
            None,
            _norm_back(_product(both, joined.t()), normed, root).add_(gradient),
            _outer(both, normed),
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
        normed, root = _normed(states, eps)
        logits = _product(normed, joined)
        picked = places * len(joined) + targets
        ctx.save_for_backward(normed, root, joined, logits, places, picked)
        return logits.log_softmax(-1).view(-1).index_select(0, picked)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        normed, root, joined, logits, places, picked = ctx.saved_tensors
        total = gradient.new_zeros(len(normed)).index_add_(0, places, gradient)
        d_logits = logits.softmax(-1).mul_(-total[:, None])
        d_logits.view(-1).index_add_(0, picked, gradient)
        d_states = _norm_back(_product(d_logits, joined.t()), normed, root)
        return None, None, None, d_states, _outer(d_logits, normed)


def _normed(values: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``values`` divided by the root of their mean square, and the inverse of that root."""
    size = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    root = size.square_().div_(values.shape[-1]).add_(eps).rsqrt_()
    return values * root, root


def _norm_back(gradient: Tensor, normed: Tensor, root: Tensor) -> Tensor:
    """The gradient before :func:`_normed`, in place."""
    along = (gradient * normed).sum(-1, keepdim=True)
    return gradient.addcmul_(normed, along, value=-1 / normed.shape[-1]).mul_(root)


def _head_norms_back(
    gradient: Tensor, head_norms: Tensor | None, normed: Tensor | None, root: Tensor | None
) -> Tensor | None:
    """Bring ``gradient`` before norms of heads, in place; gives that of their weights."""
    if head_norms is None or normed is None or root is None:
        return None
    d_weights = (gradient * normed).sum(0)
    _norm_back(gradient.mul_(head_norms), normed, root)
    return d_weights


def _turn(heads: Tensor, turns: Tensor) -> None:
    """Multiply pairs of numbers as complex ones, in place."""
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    torch.mul(pairs, turns, out=pairs)


def _summed(values: Tensor, index: Tensor, count: int) -> Tensor:
    """For each of ``count`` places the sum of the ``values`` that ``index`` sends there."""
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, index, values)


def _split(parts: Tensor, shape: Shape, length: int) -> list[Tensor]:
    """Queries [B * keys, queries / keys * T, D], keys and values [B * keys, T, D] of one tensor."""
    rows = len(parts) // (shape.heads * length)
    sizes = [rows * count * length for count in (shape.queries, shape.keys, shape.keys)]
    return [part.view(rows * shape.keys, -1, shape.width) for part in parts.split(sizes)]


def _product(values: Tensor, matrix: Tensor) -> Tensor:
    """``values @ matrix.t()``, which oneDNN computes a little faster than MKL."""
    many = values.dtype == torch.float32 and len(values) >= _ONEDNN_ROWS
    if _ONEDNN is not None and many:
        product: Tensor = _ONEDNN(values, matrix, None, "none", [], "")
        return product
    return values @ matrix.t()


def _outer(gradient: Tensor, values: Tensor) -> Tensor:
    """The gradient of a matrix; the product is faster with the wider factor on the right."""
    if gradient.shape[1] <= values.shape[1]:
        return gradient.t() @ values
    return (values.t() @ gradient).t().contiguous()
