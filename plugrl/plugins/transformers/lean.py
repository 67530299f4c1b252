"""Llama-shaped models without gradients, with as few operations as possible.

With one token a row, a small model spends most of its time between the operations. Here a layer
takes about 25 of them instead of 80: projections that share an input are one matrix, positions
turn pairs as complex numbers, and scores are batched products over the cache. Models are taken
only after they gave equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from plugrl.plugins.transformers.cache import RowCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Models made of this layer: RMS norms before attention and MLP, rotary positions, SiLU gates.
_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Kinds of rotary positions whose angles depend on the position alone.
_ROTARY = frozenset({"default", "linear", "llama3"})
#: The table of angles grows by this many positions.
_POSITIONS = 1024


def can_be_lean(model: PreTrainedModel) -> bool:
    """Whether :class:`LeanBody` computes what ``model`` does."""
    config: Any = model.config
    rotary = getattr(model.base_model, "rotary_emb", None)
    return (
        config.model_type in _FAMILY
        and config.hidden_act == "silu"
        and getattr(rotary, "rope_type", None) in _ROTARY
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and not any(
            layer.self_attn.o_proj.bias is not None or layer.mlp.gate_proj.bias is not None
            for layer in model.base_model.layers
        )
        and not any(hooks for hooks in map(_hooks, model.base_model.modules()))
    )


class LeanBody:
    """The layers of a model, for one more token a row or for whole sequences, without gradients.

    The model keeps its weights. The gates become views of joined matrices, so that what is copied
    into the model arrives here; :meth:`refresh` takes over the others.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.base_model
        self._body = body
        self._layers = [_Layer(layer, model.config) for layer in body.layers]
        self.key_heads = int(model.config.num_key_value_heads)
        self._norm = body.norm.weight
        self._eps = float(model.config.rms_norm_eps)
        self._angles = torch.empty(0)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over weights that are not views of the model's."""
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
        states = embedding(tokens, self._body.embed_tokens.weight)
        # A row is in the first column at the earliest, so no position reaches the length.
        angles = self._angles_at(positions[:, 0], cache.get_seq_length())
        for layer, cached in zip(self._layers, cache.layers, strict=True):
            states = layer.step(states, mask, angles, cached)
        return rms_norm(states, states.shape[-1:], self._norm, self._eps)

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
        states = embedding(tokens.flatten(), self._body.embed_tokens.weight)
        angles = self._angles_at(positions.flatten(), length)
        mask = None
        if real is not None:
            places = torch.arange(length, device=tokens.device)
            distance = places[:, None] - places
            # Padding sees itself, because a softmax over nothing is not a number.
            mask = ((distance >= 0) & real[:, None, None, :]) | (distance == 0)
        for number, layer in enumerate(self._layers):
            cached = None if cache is None else cache.layers[number]
            states = layer.sequences(states, rows, mask, angles, cached)
        states = rms_norm(states, states.shape[-1:], self._norm, self._eps)
        return states.view(rows, length, -1)

    def _angles_at(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """The rotary positions, [N, 1, D / 2], as complex numbers."""
        if length >= len(self._angles):
            count = (length // _POSITIONS + 1) * _POSITIONS
            every = torch.arange(count, device=positions.device)[None]
            like = self._norm.new_empty(1, dtype=_exact(self._norm.dtype))
            cos, sin = self._body.rotary_emb(like, every)
            half = cos.shape[-1] // 2
            self._angles = torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None]
        return self._angles.index_select(0, positions)


class _Layer:
    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._eps = float(config.rms_norm_eps)
        self._width = attention.head_dim
        self._scale = float(attention.scaling)
        self._queries = config.num_attention_heads
        self._keys = config.num_key_value_heads
        #: Columns of queries and keys, which the positions turn.
        self._turning = (self._queries + self._keys) * self._width
        self._attention = attention
        self._norm_1 = layer.input_layernorm.weight
        self._norm_2 = layer.post_attention_layernorm.weight
        self._gate_up = _joined((mlp.gate_proj, mlp.up_proj), "weight").t()
        self._out, self._down = (m.weight.detach().t() for m in (attention.o_proj, mlp.down_proj))
        self._nothing = torch.zeros_like(self._norm_1[:1])
        self._bias: torch.Tensor | None = None
        self._head_norm: torch.Tensor | None = None

    def refresh(self) -> None:
        """Copy what is needed in another order or shape than the model has it."""
        parts = [getattr(self._attention, f"{name}_proj") for name in "qkv"]
        heads = (self._queries, self._keys)
        weights = [part.weight.detach() for part in parts]
        paired = [_paired(w, n) for w, n in zip(weights, heads, strict=False)]
        self._qkv = torch.cat([*paired, weights[2]]).t()
        if parts[0].bias is not None:
            biases = [part.bias.detach() for part in parts]
            paired = [_paired(b, n) for b, n in zip(biases, heads, strict=False)]
            self._bias = torch.cat([*paired, biases[2]])
        if hasattr(self._attention, "q_norm"):
            norms = (self._attention.q_norm.weight, self._attention.k_norm.weight)
            each = [_paired(w.detach(), 1).repeat(n) for w, n in zip(norms, heads, strict=True)]
            self._head_norm = torch.cat(each).to(_exact(each[0].dtype))
            one = self._head_norm.new_full((self._width, 1), 1 / self._width)
            # The mean over each head as a matrix product: a sum over few columns is slower.
            self._mean = torch.block_diag(*[one] * sum(heads))
            self._least = self._mean.new_full((1,), self._eps)

    def step(
        self, states: torch.Tensor, mask: torch.Tensor | None, angles: torch.Tensor, cached: Any
    ) -> torch.Tensor:
        """One token a row: [B, H], which is overwritten."""
        turned, values = self._heads(states, angles)
        keys, values = cached.append(turned[:, self._queries :], values)
        batch, _, length, width = keys.shape
        many = batch * self._keys
        queries = turned[:, : self._queries].reshape(many, -1, width)
        scores = torch.baddbmm(
            self._nothing if mask is None else mask,
            queries,
            keys.view(many, length, width).transpose(1, 2),
            beta=0 if mask is None else 1,
            alpha=self._scale,
        )
        seen = torch.bmm(scores.softmax(-1), values.view(many, length, width))
        return self._finished(states, seen.view(batch, -1))

    def sequences(
        self,
        states: torch.Tensor,
        rows: int,
        mask: torch.Tensor | None,
        angles: torch.Tensor,
        cached: Any,
    ) -> torch.Tensor:
        """All tokens of ``rows`` sequences: [B * T, H], which is overwritten."""
        turned, values = self._heads(states, angles)
        turned, values = (
            each.unflatten(0, (rows, -1)).transpose(1, 2) for each in (turned, values)
        )
        queries, keys = turned.split((self._queries, self._keys), 1)
        if cached is not None:
            cached.update(keys, values)
        seen = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
            enable_gqa=self._queries != self._keys,
        )
        return self._finished(states, seen.transpose(1, 2).reshape(len(states), -1))

    def _heads(
        self, states: torch.Tensor, angles: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys at their positions, [N, heads, D] together, and values."""
        count = len(states)
        normed = rms_norm(states, states.shape[-1:], self._norm_1, self._eps)
        if self._bias is None:
            joined = torch.mm(normed, self._qkv)
        else:
            joined = torch.addmm(self._bias, normed, self._qkv)
        turning = joined[:, : self._turning].to(angles.real.dtype)
        if self._head_norm is not None:
            means = torch.addmm(self._least, turning.square(), self._mean)
            turning = turning.view(count, -1, self._width) * means.rsqrt_()[..., None]
            turning = turning.view(count, -1).mul_(self._head_norm)
        pairs = torch.view_as_complex(turning.view(count, -1, self._width // 2, 2))
        turned = torch.view_as_real(pairs * angles).view(count, -1, self._width)
        return turned.to(joined.dtype), joined[:, self._turning :].view(count, -1, self._width)

    def _finished(self, states: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """What follows attention, [N, H]."""
        states.addmm_(seen, self._out)
        normed = rms_norm(states, states.shape[-1:], self._norm_2, self._eps)
        gate, up = torch.mm(normed, self._gate_up).chunk(2, -1)
        return states.addmm_(silu(gate).mul_(up), self._down)


def _paired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head in the order that puts side by side what a position turns together.

    Models keep the real parts of a head before the imaginary ones.
    """
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The precision of norms of heads and of angles."""
    return torch.float64 if dtype == torch.float64 else torch.float32


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


def _hooks(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
