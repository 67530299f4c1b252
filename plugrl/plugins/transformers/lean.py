"""Llama-shaped models without gradients, with as few operations as possible.

With one token a row, a small model spends most of its time between the operations. Here a layer
takes about 25 of them instead of 80: projections that share an input are one matrix, positions
turn pairs as complex numbers, and scores are batched products over the cache. Models are taken
only after they gave equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.linalg import vector_norm
from torch.nn import Parameter
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from plugrl.plugins.transformers.cache import RowCache
from plugrl.plugins.transformers.lean_models import is_small
from plugrl.plugins.transformers.norms import Norm, States, exact

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The table of angles grows by this many positions.
_POSITIONS = 1024


class LeanBody:
    """The layers of a model, for one more token a row or for whole sequences, without gradients.

    The model keeps its weights. The gates become views of joined matrices, so that what is copied
    into the model arrives here; :meth:`refresh` takes over the others. For a small model on the CPU
    all matrices are copies.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.base_model
        self._body = body
        self._exact = exact(model.dtype)
        # In half precision, the product of two weights would be rounded once more.
        small = is_small(model) and model.device.type == "cpu" and model.dtype == self._exact
        self._layers = [_Layer(layer, model.config, small) for layer in body.layers]
        self.key_heads = int(model.config.num_key_value_heads)
        self._norm = Norm(body.norm)
        self._angles = torch.empty(0)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over weights that are not views of the model's."""
        self._norm.refresh()
        for layer in self._layers:
            layer.refresh()

    def step(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RowCache,
    ) -> torch.Tensor:
        """Last hidden states, [B, H]; the tokens' keys and values are appended to ``cache``.

        Args:
            tokens: [B].
            mask: what :meth:`Runner.mask` made, or None.
            positions: [B, 1].
            cache: of this model.
        """
        states = self._norm.states(embedding(tokens, self._body.embed_tokens.weight))
        # A row is in the first column at the earliest, so no position reaches the length.
        angles = self._angles_at(positions[:, 0], cache.get_seq_length())
        for layer, cached in zip(self._layers, cache.layers, strict=True):
            layer.step(states, mask, angles, cached)
        return self._norm(states)

    @torch.no_grad()
    def sequences(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        real: torch.Tensor | None = None,
        cache: RowCache | None = None,
    ) -> torch.Tensor:
        """Last hidden states, [B, T, H], of whole sequences.

        Args:
            tokens: [B, T].
            positions: [B, T], each below T.
            real: [B, T], which tokens are not padding; None when all are. It may stand on either
                side, and gets hidden states that mean nothing.
            cache: an empty one, which gets the keys and values.
        """
        rows, length = tokens.shape
        states = self._norm.states(embedding(tokens.flatten(), self._body.embed_tokens.weight))
        angles = self._angles_at(positions.flatten(), length)
        mask = None
        if real is not None:
            places = torch.arange(length, device=tokens.device)
            distance = places[:, None] - places
            # Padding sees itself, because a softmax over nothing is not a number.
            mask = ((distance >= 0) & real[:, None, None, :]) | (distance == 0)
        for number, layer in enumerate(self._layers):
            cached = None if cache is None else cache.layers[number]
            layer.sequences(states, rows, mask, angles, cached)
        return self._norm(states).view(rows, length, -1)

    def _angles_at(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """The rotary positions, [N, 1, 1, D / 2], as complex numbers."""
        if length >= len(self._angles):
            count = (length // _POSITIONS + 1) * _POSITIONS
            every = torch.arange(count, device=positions.device)[None]
            like = torch.empty(1, dtype=self._exact, device=positions.device)
            cos, sin = self._body.rotary_emb(like, every)
            half = cos.shape[-1] // 2
            self._angles = torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None, None]
        return self._angles.index_select(0, positions)


class _Layer:
    def __init__(self, layer: Any, config: Any, small: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._width = attention.head_dim
        self._scale = float(attention.scaling)
        self._keys = config.num_key_value_heads
        #: Queries that share a key: products with the cache are one for each key.
        self._group = config.num_attention_heads // self._keys
        #: Numbers of a group that the positions turn, those of queries and the key; then the value.
        self._turning = (self._group + 1) * self._width
        self._norm_1 = Norm(layer.input_layernorm)
        self._norm_2 = Norm(layer.post_attention_layernorm)
        self._gate_up = _joined((mlp.gate_proj, mlp.up_proj), "weight").t()
        self._out, self._down = (m.weight.detach().t() for m in (attention.o_proj, mlp.down_proj))
        self._exact = exact(self._gate_up.dtype)
        self._nothing = torch.zeros_like(self._gate_up[0, :1])
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        three = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._qkv = self._copied([m.weight for m in three]).t()
        self._small = small
        if small:
            self._make_own()
        self._bias: torch.Tensor | None = None
        if three[0].bias is not None:
            self._bias = self._copied([m.bias for m in three])
        self._head_norm: torch.Tensor | None = None
        self._query_norm: torch.Tensor | None = None
        if hasattr(attention, "q_norm"):
            self._head_norm = self._qkv.new_empty(self._group + 1, self._width // 2, 2)
            norms = (attention.q_norm, slice(-1)), (attention.k_norm, slice(-1, None))
            for norm, where in norms:
                target = self._head_norm[where].transpose(1, 2)
                self._copies.append((target, norm.weight.detach().view(2, -1)))
            self._head_norm = self._head_norm.flatten(1)
            epsilon = attention.q_norm.variance_epsilon
            self._epsilon = self._head_norm.new_full((1,), epsilon).to(self._exact)
            # The scale of the scores belongs to the weights of the queries then.
            self._query_norm = self._head_norm[:-1] if small else None

    def _make_own(self) -> None:
        """Matrices in the order in which products are fastest, times the weights of the norms."""
        self._products = [(self._norm_1, self._qkv), (self._norm_2, self._gate_up)]
        self._qkv, self._gate_up = (matrix.contiguous() for _, matrix in self._products)
        for name in ("_out", "_down"):
            matrix = getattr(self, name)
            setattr(self, name, matrix.contiguous())
            self._copies.append((getattr(self, name), matrix))

    def _copied(self, parts: list[torch.Tensor]) -> torch.Tensor:
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
        if self._query_norm is not None:
            self._query_norm.mul_(self._scale)
        if self._small:
            for (norm, matrix), own in zip(self._products, (self._qkv, self._gate_up), strict=True):
                torch.mul(matrix, norm.scaled[:, None], out=own)

    def _normed(self, norm: Norm, states: States) -> torch.Tensor:
        return norm.bare(states) if self._small else norm(states)

    def step(
        self, states: States, mask: torch.Tensor | None, angles: torch.Tensor, cached: Any
    ) -> None:
        """Change the states of one token a row, [B, H]."""
        queries, new, values = self._heads(states, angles)
        keys, values = cached.append(new, values)
        keys = keys.transpose(1, 2)
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
        rows: int,
        mask: torch.Tensor | None,
        angles: torch.Tensor,
        cached: Any,
    ) -> None:
        """Change the states of all tokens of ``rows`` sequences, [B * T, H]."""
        queries, keys, values = (
            each.reshape(rows, angles.shape[0] // rows, -1, self._width).transpose(1, 2)
            for each in self._heads(states, angles)
        )
        if cached is not None:
            cached.update(keys, values)
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

    def _heads(self, states: States, angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries at their positions, [N * keys, group, D], keys and values, [N * keys, D]."""
        normed = self._normed(self._norm_1, states)
        if self._bias is None:
            joined = torch.mm(normed, self._qkv)
        else:
            joined = torch.addmm(self._bias, normed, self._qkv)
        # Methods without a layer of Python around them, here and below.
        joined = joined.view(angles.shape[0] * self._keys, -1)
        turning, values = joined.split_with_sizes((self._turning, self._width), 1)
        shape = (joined.shape[0], self._group + 1, self._width)
        turning = turning.to(self._exact).view(shape)
        if self._head_norm is not None:
            norm = vector_norm(turning, dim=-1, keepdim=True)
            least = torch.addcmul(self._epsilon, norm, norm, value=1 / self._width)
            turning = (turning * least.rsqrt_()).mul_(self._head_norm)
        pairs = torch.view_as_complex(turning.view(*shape[:2], -1, 2))
        pairs = pairs.view(angles.shape[0], -1, *pairs.shape[1:]) * angles
        turned = torch.view_as_real(pairs).view(shape).to(joined.dtype)
        queries, keys = turned.split_with_sizes((self._group, 1), 1)
        return queries, keys[:, 0], values

    def _finish(self, states: States, seen: torch.Tensor) -> None:
        """What follows attention, [N, H]."""
        states.own.addmm_(seen, self._out)
        gate, up = torch.mm(self._normed(self._norm_2, states), self._gate_up).chunk(2, -1)
        states.own.addmm_(silu(gate).mul_(up), self._down)


def _joined(modules: Any, name: str) -> torch.Tensor:
    """One tensor of the parameters ``name``, which become views of it."""
    parts = [getattr(module, name) for module in modules]
    whole = torch.cat([part.detach() for part in parts])
    start = 0
    for module, part in zip(modules, parts, strict=True):
        view = whole[start : start + len(part)]
        setattr(module, name, Parameter(view, requires_grad=part.requires_grad))
        start += len(part)
    return whole
