"""One decoding step of Llama-shaped models with as few operations as possible.

With one token a row, a small model spends most of its time between the operations. Here a layer
takes about 20 of them instead of 80: projections that share an input are one matrix, and scores
are batched products over the cache. Models are taken only after they gave equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter
from torch.nn.functional import linear, rms_norm, silu

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
        and not any(
            layer.self_attn.o_proj.bias is not None or layer.mlp.gate_proj.bias is not None
            for layer in model.base_model.layers
        )
        and not any(hooks for hooks in map(_hooks, model.base_model.modules()))
    )


class LeanBody:
    """The layers of a model, for one token a row.

    The model keeps its weights: they become views of the joined matrices, so that what is copied
    into the model arrives here.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.base_model
        self._body = body
        self._layers = [_Layer(layer, model.config) for layer in body.layers]
        self._norm = body.norm.weight
        self._eps = float(model.config.rms_norm_eps)
        self._cos = self._sin = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        """Take over weights that are not views of the model's."""
        for layer in self._layers:
            layer.refresh()

    def __call__(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RowCache,
    ) -> torch.Tensor:
        """Last hidden states, [B, H]; the tokens' keys and values are appended to ``cache``.

        Args:
            tokens: [B].
            mask: [B, 1, 1, columns], additive, or None.
            positions: [B, 1].
            cache: of this model.
        """
        states = torch.nn.functional.embedding(tokens, self._body.embed_tokens.weight)
        # A row is in the first column at the earliest, so no position reaches the length.
        angles = self._angles(positions, cache.get_seq_length())
        for layer, cached in zip(self._layers, cache.layers, strict=True):
            states = layer(states, mask, angles, cached)
        return rms_norm(states, states.shape[-1:], self._norm, self._eps)

    def _angles(self, positions: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of the rotary positions, [B, 1, D] each."""
        if length >= len(self._cos):
            count = (length // _POSITIONS + 1) * _POSITIONS
            every = torch.arange(count, device=positions.device)[None]
            cos, sin = self._body.rotary_emb(self._norm, every)
            half = sin.shape[-1] // 2
            # The halves change places, and the first one gets a minus.
            self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
            self._cos = cos[0].contiguous()
        rows = positions[:, 0]
        return self._cos[rows][:, None], self._sin[rows][:, None]


class _Layer:
    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._eps = float(config.rms_norm_eps)
        self._width = attention.head_dim
        self._scale = float(attention.scaling)
        self._queries = config.num_attention_heads
        self._keys = config.num_key_value_heads
        self._attention = attention
        self._norm_1 = layer.input_layernorm.weight
        self._norm_2 = layer.post_attention_layernorm.weight
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._qkv = _joined(three, "weight")
        self._bias = _joined(three, "bias") if attention.q_proj.bias is not None else None
        self._gate_up = _joined((mlp.gate_proj, mlp.up_proj), "weight")
        self._out, self._down = attention.o_proj, mlp.down_proj
        self._head_norm: torch.Tensor | None = None

    def refresh(self) -> None:
        if hasattr(self._attention, "q_norm"):
            heads = [self._attention.q_norm.weight] * self._queries
            heads += [self._attention.k_norm.weight] * self._keys
            self._head_norm = torch.stack([weight.detach() for weight in heads])

    def __call__(
        self,
        states: torch.Tensor,
        mask: torch.Tensor | None,
        angles: tuple[torch.Tensor, torch.Tensor],
        cached: Any,
    ) -> torch.Tensor:
        batch = len(states)
        joined = linear(
            rms_norm(states, states.shape[-1:], self._norm_1, self._eps), self._qkv, self._bias
        )
        heads = joined.view(batch, -1, self._width)
        turning = heads[:, : self._queries + self._keys]
        if self._head_norm is not None:
            turning = rms_norm(turning, (self._width,), None, self._eps).mul_(self._head_norm)
        half = self._width // 2
        swapped = torch.cat([turning[..., half:], turning[..., :half]], -1)
        turned = (turning * angles[0]).addcmul_(swapped, angles[1])
        queries = turned[:, : self._queries]
        keys, values = cached.append(
            turned[:, self._queries :], heads[:, self._queries + self._keys :]
        )
        length = keys.shape[2]
        groups = self._queries // self._keys
        queries = queries.reshape(batch * self._keys, groups, self._width)
        keys = keys.view(batch * self._keys, length, self._width)
        scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(self._scale)
        if mask is not None:
            scores.view(batch, self._keys, groups, length).add_(mask)
        seen = torch.bmm(scores.softmax(-1), values.view(batch * self._keys, length, -1))
        states = torch.addmm(states, seen.view(batch, -1), self._out.weight.t())
        both = linear(rms_norm(states, states.shape[-1:], self._norm_2, self._eps), self._gate_up)
        gate, up = both.chunk(2, -1)
        return torch.addmm(states, silu(gate).mul_(up), self._down.weight.t())


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
