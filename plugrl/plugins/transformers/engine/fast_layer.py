"""One layer of the fast forward pass; ``fast_body.py`` puts them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.linalg import vector_norm
from torch.nn.functional import scaled_dot_product_attention, silu

from plugrl.plugins.transformers.engine.slots import Slots

#: A softmax over fewer columns goes through them one by one, and takes up to ten times as long.
NARROWEST = 16


class States(NamedTuple):
    """States [N, H] as a view of [N, H + 1] with the column that norms want."""

    whole: torch.Tensor
    own: torch.Tensor


class Norm:
    """An RMS norm in two operations, where the one of the CPU takes seven.

    With the square root of H * epsilon in one more column, the norm of a row is what the states
    are to be divided by, but for the square root of H.
    """

    def __init__(self, norm: Any) -> None:
        self._weight, self._eps = norm.weight.detach(), float(norm.variance_epsilon)
        self._exact = exact(self._weight.dtype)
        #: The weight as it is after :meth:`bare`, [H].
        self.scaled = torch.empty_like(self._weight, dtype=self._exact, requires_grad=False)

    def refresh(self) -> None:
        """Take over other weights."""
        torch.mul(self._weight, self._weight.shape[0] ** 0.5, out=self.scaled)

    def states(self, rows: torch.Tensor) -> States:
        """A copy of ``rows``, [N, H], with the column."""
        count, size = rows.shape
        whole = rows.new_full((count, size + 1), (size * self._eps) ** 0.5)
        own = whole[:, :size]
        own.copy_(rows)
        return States(whole, own)

    def __call__(self, states: States) -> torch.Tensor:
        """Normed states, [N, H]."""
        own = states.own
        norm = vector_norm(states.whole, dim=-1, keepdim=True, dtype=self._exact)
        return (own / norm).mul_(self.scaled).to(own.dtype)

    def bare(self, states: States) -> torch.Tensor:
        """Normed states before the multiplication by :attr:`scaled`, [N, H], in full precision."""
        return states.own / vector_norm(states.whole, dim=-1, keepdim=True)


def exact(dtype: torch.dtype) -> torch.dtype:
    """The precision of norms and angles of a model of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Columns:
    """What the steps of a batch write to and see of the slots, until its rows change.

    Args:
        slots: of the model.
        positions: tokens that each row has.
    """

    def __init__(self, slots: Slots, positions: Sequence[int]) -> None:
        rows, capacity, device = len(positions), slots.capacity, slots.shape.device
        heads = slots.shape.heads
        states = list(zip(slots.keys, slots.values, strict=True))
        self._flat = [(k.flatten(0, 2), v.flatten(0, 2)) for k, v in states]
        self._own = [(k[:rows].flatten(0, 1), v[:rows].flatten(0, 1)) for k, v in states]
        self._at = self._width = 0
        self._index: torch.Tensor | None = None
        #: What hides columns that a row does not have, to be added to scores; None: nothing does.
        self.mask: torch.Tensor | None = None
        # Rows of one length write in one column and need no mask.
        self._starts: torch.Tensor | None = None
        if len(set(positions)) > 1:
            self._starts = torch.arange(rows * heads, device=device) * capacity
            self._heads = heads
            there = torch.arange(capacity, device=device) < torch.tensor(
                positions, device=device
            ).repeat_interleave(heads).unsqueeze(1)
            self._hidden = torch.zeros(there.shape, dtype=slots.shape.dtype, device=device)
            self._hidden.masked_fill_(~there, -torch.inf)

    def advance(self, positions: torch.Tensor, width: int) -> None:
        """Go to a step: rows have ``positions`` ([B]) tokens, and at most ``width`` after it."""
        self._at, self._width = width - 1, max(width, NARROWEST)
        if self._starts is None:
            self.mask = None
            if width < NARROWEST:
                states = self._own[0][0]
                self.mask = states.new_zeros(1, 1, NARROWEST)
                self.mask[..., width:] = -torch.inf
            return
        self._index = self._starts + positions.repeat_interleave(self._heads)
        self._hidden.view(-1).index_fill_(0, self._index, 0)
        self.mask = self._hidden.narrow(1, 0, self._width).unsqueeze(1)

    def append(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write states of a step, [B * heads, D]; returns what is seen, [B * heads, columns, D]."""
        all_keys, all_values = self._own[layer]
        if self._index is None:
            all_keys.select(1, self._at).copy_(keys)
            all_values.select(1, self._at).copy_(values)
        else:
            flat_keys, flat_values = self._flat[layer]
            flat_keys.index_copy_(0, self._index, keys)
            flat_values.index_copy_(0, self._index, values)
        return all_keys.narrow(1, 0, self._width), all_values.narrow(1, 0, self._width)


class Layer:
    """A layer, with its matrices in the forms that take the fewest operations.

    Args:
        layer: of the model.
        config: of the model.
        small: whether all matrices are copies.
    """

    def __init__(self, layer: Any, config: Any, small: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._width = attention.head_dim
        self._scale = float(attention.scaling)
        self._keys = config.num_key_value_heads
        #: Queries that share a key: products with the cache are one for each key.
        self._group = config.num_attention_heads // self._keys
        self._norm_1 = Norm(layer.input_layernorm)
        self._norm_2 = Norm(layer.post_attention_layernorm)
        matrices = (mlp.gate_proj, mlp.up_proj, attention.o_proj, mlp.down_proj)
        *gates, self._out, self._down = (matrix.weight.detach().t() for matrix in matrices)
        #: One joined matrix where it is a copy, else the model's two.
        self._gates = tuple(gates)
        self._dtype = self._out.dtype
        self._exact = exact(self._dtype)
        self._half = self._exact != self._dtype
        self._nothing = torch.zeros_like(self._out[0, :1])
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        three = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._qkv = self._copy_parts([m.weight for m in three]).t()
        self._small = small
        if small:
            self._make_own()
        self._bias: torch.Tensor | None = None
        if three[0].bias is not None:
            self._bias = self._copy_parts([m.bias for m in three])
        self._head_norm: torch.Tensor | None = None
        self._query_norm: torch.Tensor | None = None
        if hasattr(attention, "q_norm"):
            shape = self._group + 1, self._width // 2, 2
            self._head_norm = self._qkv.new_empty(shape, dtype=self._exact)
            norms = (attention.q_norm, slice(-1)), (attention.k_norm, slice(-1, None))
            for norm, where in norms:
                target = self._head_norm[where].transpose(1, 2)
                self._copies.append((target, norm.weight.detach().view(2, -1)))
            self._head_norm = self._head_norm.flatten(1)
            # The norm of a head is divided by the square root of D with the weights.
            least = (self._width * attention.q_norm.variance_epsilon) ** 0.5
            self._least = self._head_norm.new_full((1,), least)
            # The scale of the scores belongs to the weights of the queries then.
            self._query_norm = self._head_norm[:-1] if small else None

    def _make_own(self) -> None:
        """Matrices in the order in which products are fastest, times the weights of the norms."""
        own, joined = self._qkv.contiguous(), torch.cat(self._gates, 1)
        gates = zip(self._gates, joined.chunk(2, 1), strict=True)
        self._products = [
            (self._norm_1, self._qkv, own),
            *((self._norm_2, gate, part) for gate, part in gates),
        ]
        self._qkv, self._gates = own, (joined,)
        for name in ("_out", "_down"):
            matrix = getattr(self, name)
            setattr(self, name, matrix.contiguous())
            self._copies.append((getattr(self, name), matrix))

    def _copy_parts(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """What :meth:`refresh` keeps equal to queries, keys and values, [all heads * D, ...].

        Each key stands between its queries and its value. What a position turns together is side
        by side in the copy; models keep the real parts of a head before the imaginary ones.
        """
        queries, keys, values = (
            part.detach().unflatten(0, (self._keys, -1, self._width)) for part in parts
        )
        whole = torch.cat([queries, keys, values], 1)
        turning, rest = whole.split([self._group + 1, 1], 1)
        turning = turning.unflatten(2, (-1, 2)).transpose(2, 3)
        for target, part in ((turning[:, :-1], queries), (turning[:, -1:], keys)):
            self._copies.append((target, part.unflatten(2, (2, -1))))
        self._copies.append((rest, values))
        return whole.flatten(0, 2)

    def refresh(self) -> None:
        """Copy what is needed in another order than the model has it."""
        self._norm_1.refresh()
        self._norm_2.refresh()
        for target, source in self._copies:
            target.copy_(source)
        if self._head_norm is not None:
            self._head_norm.mul_(self._width**0.5)
        if self._query_norm is not None:
            self._query_norm.mul_(self._scale)
        if self._small:
            for norm, matrix, own in self._products:
                torch.mul(matrix, norm.scaled[:, None], out=own)

    def _normalise(self, norm: Norm, states: States) -> torch.Tensor:
        return norm.bare(states) if self._small else norm(states)

    def step(
        self,
        states: States,
        projected: torch.Tensor | None,
        angles: torch.Tensor,
        number: int,
        seen: Columns,
    ) -> None:
        """Change the states of one token a row, [B, H]; ``projected`` as :meth:`project`."""
        queries, new, values = self._heads(states, projected, angles)
        keys, values = seen.append(number, new, values)
        keys, mask = keys.transpose(1, 2), seen.mask
        if mask is None and self._query_norm is not None:
            scores = torch.bmm(queries, keys)
        else:
            scores = torch.baddbmm(
                self._nothing if mask is None else mask,
                queries,
                keys,
                beta=0 if mask is None else 1,
                alpha=self._scale if self._query_norm is None else 1,
            )
        self._finish(states, torch.bmm(scores.softmax(-1), values).view(angles.shape[0], -1))

    def sequences(
        self,
        states: States,
        projected: torch.Tensor | None,
        rows: int,
        mask: torch.Tensor | None,
        angles: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change the states of all tokens of ``rows`` sequences, [B * T, H].

        Returns:
            Keys and values, [B, heads, T, D].
        """
        queries, keys, values = (
            each.reshape(rows, angles.shape[0] // rows, -1, self._width).transpose(1, 2)
            for each in self._heads(states, projected, angles)
        )
        seen = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale if self._query_norm is None else 1,
            enable_gqa=self._group > 1,
        )
        self._finish(states, seen.transpose(1, 2).reshape(angles.shape[0], -1))
        return keys, values

    def project(self, states: States) -> torch.Tensor:
        """Queries, key and value of each group, [N, keys * (group + 2) * D], not turned yet."""
        normed = self._normalise(self._norm_1, states)
        if self._bias is None:
            joined = torch.mm(normed, self._qkv)
        else:
            joined = torch.addmm(self._bias, normed, self._qkv)
        if self._half:
            joined = joined.to(self._exact)
        if self._head_norm is not None:
            heads = joined.view(-1, self._group + 2, self._width).narrow(1, 0, self._group + 1)
            norm = vector_norm(heads, dim=-1, keepdim=True)
            heads.div_(norm.hypot_(self._least)).mul_(self._head_norm)
        return joined

    def _heads(
        self, states: States, projected: torch.Tensor | None, angles: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Queries at their positions, [N * keys, group, D], keys and values, [N * keys, D]."""
        if projected is None:
            projected = self.project(states)
        group, shape = self._group, (-1, self._group + 2, self._width)
        values = projected.view(shape).select(1, group + 1)
        pairs = torch.view_as_complex(projected.view(len(angles), self._keys, group + 2, -1, 2))
        turned = torch.view_as_real(pairs.narrow(2, 0, group + 1) * angles)
        turned = turned.view(-1, group + 1, self._width)
        if self._half:
            turned, values = turned.to(self._dtype), values.to(self._dtype)
        return turned.narrow(1, 0, group), turned.select(1, group), values

    def _finish(self, states: States, seen: torch.Tensor) -> None:
        """What follows attention, [N, H]."""
        states.own.addmm_(seen, self._out)
        normed = self._normalise(self._norm_2, states)
        if self._small:
            gate, up = torch.mm(normed, self._gates[0]).chunk(2, -1)
        else:
            gate, up = (torch.mm(normed, matrix) for matrix in self._gates)
        states.own.addmm_(silu(gate).mul_(up), self._down)
