"""Attention over packed tokens, with a backward pass written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from plugrl.plugins.transformers.lean_layers import (
    Gradients,
    Shape,
    linear,
    outer,
    rms_norm_back,
    rms_normed,
)

#: Columns of rows are cut into pieces of a multiple of so many, at most three: the scores of a
#: piece are those with the keys up to its end. A softmax goes through 16 numbers at once.
_PIECE = 16
_MOST_PIECES = 3
#: Fewer scores are not worth more operations.
_MANY = 100_000


@dataclass(frozen=True)
class Piece:
    """Columns ``first`` to ``last``, as in a slice, of rows whose queries are computed together.

    ``mask`` ([(last - first) * group, last]) is what is added to scores; the queries that share a
    key, a group, stand below each other.
    """

    first: int
    last: int
    mask: Tensor

    @classmethod
    def of(cls, rows: int, length: int, group: int, like: Tensor) -> tuple[Piece, ...]:
        """The pieces of so many rows of ``length`` columns; masks are as ``like`` is."""
        step = length
        if rows * group * length**2 >= _MANY:
            step = -(-length // (_PIECE * _MOST_PIECES)) * _PIECE
        hidden = torch.full((length, length), -torch.inf, dtype=like.dtype).triu(1)
        pieces = []
        for first in range(0, length, step):
            last = min(first + step, length)
            mask = hidden[first:last, :last].repeat_interleave(group, 0)
            pieces.append(cls(first, last, mask))
        return tuple(pieces)


@dataclass(frozen=True)
class Plan:
    """Where the heads of N packed tokens lie in B rows of T columns, of which M tokens go on.

    Args:
        gather: which of [N * heads] are the queries, of each piece [B, keys, columns, group], the
            keys and the values, [B, keys, T].
        back: which of the queries [B * queries * T] the outputs [M, queries] belong to.
        spread: which of [(M + 1) * queries] belong to the queries: the inverse of ``back``, with M
            for what no token asks.
        own: the inverse of ``gather`` for the one place of a head in its own row, [N * heads].
        others: the places of keys and values outside of it, numbers of what is gathered.
        source: which of the given states is that of each token, [N]; None: they are in order.
        kept: which of the given states is that of each token that goes on, [M]; None: as before.
        turns: the turns of queries, with the scale of the scores, and keys: complex,
            [N, queries + keys, D / 2].
        turns_back: their conjugates; None without gradients.
        pieces: of the columns.
    """

    gather: Tensor
    back: Tensor
    spread: Tensor
    own: Tensor
    others: Tensor
    source: Tensor | None
    kept: Tensor | None
    turns: Tensor
    turns_back: Tensor | None
    pieces: tuple[Piece, ...]

    @property
    def length(self) -> int:
        """T."""
        return self.pieces[-1].last


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
        normed, root = rms_normed(states, shape.eps)
        heads = linear(normed, joined)
        if bias is not None:
            heads += bias
        turning = heads.view(len(states), shape.heads, shape.width)[:, : shape.turning]
        single: tuple[Tensor | None, Tensor | None] = (None, None)
        if head_norms is not None:
            single = rms_normed(turning, shape.eps)
            torch.mul(single[0], head_norms, out=turning)
        if plan.source is not None:
            heads = heads.index_select(0, plan.source)
            turning = heads.view(-1, shape.heads, shape.width)[:, : shape.turning]
        _turn(turning, plan.turns)
        gathered = heads.view(-1, shape.width).index_select(0, plan.gather)
        queries, keys, values = _split(gathered, shape, plan)
        seen = torch.empty_like(queries)
        scores = []
        for piece, own, place in _pieces(plan, queries, seen, keys=keys):
            until = keys[:, : piece.last].transpose(1, 2)
            scores.append(torch.baddbmm(piece.mask, own, until).softmax(-1))
            torch.bmm(scores[-1], values[:, : piece.last], out=place)
        seen = seen.index_select(0, plan.back).view(-1, out.shape[1])
        ctx.shape, ctx.plan, ctx.with_bias = shape, plan, bias is not None
        ctx.save_for_backward(
            normed, root, joined, out, head_norms, *single, queries, keys, values, seen, *scores
        )
        rest = states if plan.kept is None else states.index_select(0, plan.kept)
        return linear(seen, out).add_(rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Gradients:  # type: ignore[override]
        """Gradients of what ``forward`` takes."""
        shape, plan = ctx.shape, ctx.plan
        normed, root, joined, out, *rest = ctx.saved_tensors
        single, (queries, keys, values, seen, *scores) = rest[:3], rest[3:]
        # One row more, of zeros, for what no token has asked.
        d_seen = gradient.new_empty(len(gradient) + 1, out.shape[1])
        d_seen[:-1] = linear(gradient, out.t())
        d_seen[-1] = 0
        d_seen = d_seen.view(-1, shape.width).index_select(0, plan.spread)
        d_parts = _scores_back(shape, plan, d_seen, scores, queries, keys, values)
        d_heads = d_parts.index_select(0, plan.own)
        if len(plan.others):
            shared = plan.gather[plan.others, None].expand(-1, shape.width)
            d_heads.scatter_add_(0, shared, d_parts.index_select(0, plan.others))
        d_heads = d_heads.view(-1, shape.heads, shape.width)
        _turn(d_heads[:, : shape.turning], plan.turns_back)
        if plan.source is not None:
            d_heads = _summed(d_heads, plan.source, len(normed))
        d_head_norms = _head_norms_back(d_heads[:, : shape.turning], *single)
        d_heads = d_heads.view(len(normed), -1)
        rest = gradient if plan.kept is None else _summed(gradient, plan.kept, len(normed))
        return (
            None,
            None,
            rms_norm_back(linear(d_heads, joined.t()), normed, root).add_(rest),
            outer(d_heads, normed),
            d_heads.sum(0) if ctx.with_bias else None,
            d_head_norms,
            outer(gradient, seen),
        )


def _head_norms_back(
    gradient: Tensor, head_norms: Tensor | None, normed: Tensor | None, root: Tensor | None
) -> Tensor | None:
    """Bring ``gradient`` before norms of heads, in place; gives that of their weights."""
    if head_norms is None or normed is None or root is None:
        return None
    d_weights = (gradient * normed).sum(0)
    rms_norm_back(gradient.mul_(head_norms), normed, root)
    return d_weights


def _turn(heads: Tensor, turns: Tensor | None) -> None:
    """Multiply pairs of numbers as complex ones, in place."""
    assert turns is not None
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    torch.mul(pairs, turns, out=pairs)


def _summed(values: Tensor, index: Tensor, count: int) -> Tensor:
    """For each of ``count`` places the sum of the ``values`` that ``index`` sends there."""
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, index, values)


def _split(parts: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B * queries * T, D], keys and values [B * keys, T, D] of what is gathered."""
    count = len(parts) // shape.heads
    queries, keys, values = parts.split(
        [count * n for n in (shape.queries, shape.keys, shape.keys)]
    )
    each = (-1, plan.length, shape.width)
    return queries, keys.view(each), values.view(each)


def _pieces(
    plan: Plan, *parts: Tensor, keys: Tensor
) -> Iterator[tuple[Piece, *tuple[Tensor, ...]]]:
    """Each piece, with what belongs to it of each of ``parts``: [B * keys, columns * group, D]."""
    count, width = len(keys), keys.shape[2]
    start = 0
    for piece in plan.pieces:
        end = start + count * len(piece.mask)
        yield piece, *(part[start:end].view(count, -1, width) for part in parts)
        start = end


def _scores_back(
    shape: Shape,
    plan: Plan,
    d_seen: Tensor,
    scores: list[Tensor],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """The gradient of what was gathered, from that of what the queries saw."""
    d_parts = keys.new_empty(len(plan.gather), shape.width)
    d_queries, d_keys, d_values = _split(d_parts, shape, plan)
    pieces = zip(_pieces(plan, queries, d_seen, d_queries, keys=keys), scores, strict=True)
    # From the last one, which sees all keys and so is the first to write their gradients.
    for (piece, own, d_own, place), seen in reversed(list(pieces)):
        until = slice(piece.last)
        d_scores = torch._softmax_backward_data(
            torch.bmm(d_own, values[:, until].transpose(1, 2)), seen, -1, seen.dtype
        )
        torch.bmm(d_scores, keys[:, until], out=place)
        for target, weights, given in ((d_keys, d_scores, own), (d_values, seen, d_own)):
            if piece.last == plan.length:
                torch.bmm(weights.transpose(1, 2), given, out=target)
            else:
                target[:, until] += torch.bmm(weights.transpose(1, 2), given)
    return d_parts
