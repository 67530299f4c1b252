"""A fast forward pass of Llama-shaped models, without gradients.

When it decodes one token per row, a small model spends most of its time between operations. Here a
layer takes about 25 of them instead of 80: projections that share an input are one matrix, rotary
positions multiply complex numbers, and scores are batched products over the cache. The runner uses
it for a model only after both gave equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import embedding

from plugrl.plugins.transformers.engine.body import Prefill
from plugrl.plugins.transformers.engine.fast_layer import Columns, Layer, Norm, States, exact
from plugrl.plugins.transformers.engine.slots import Slots, SlotShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The table of angles grows by this many positions.
_POSITIONS = 1024
#: Of so few tokens, all are computed up to the first positions whenever the weights change.
_FEW_TOKENS = 2048

#: Models made of this layer: RMS norms before attention and MLP, rotary positions, SiLU gates.
_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Kinds of rotary positions whose angles depend on the position alone.
_ROTARY = frozenset({"default", "linear", "llama3"})
#: Larger models spend their time in matrix products, and matrices of their own take memory.
_MOST_PARAMETERS = 200_000_000


class FastBody:
    """The layers of a model, for one more token a row or for whole sequences, without gradients.

    The model is only read, and its parameters stay what they are. The matrices of queries, keys and
    values are copies in another order, of a small model on the CPU all matrices are copies, and
    :meth:`refresh` renews them.
    """

    joins = True

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.base_model
        self._body = body
        self._exact = exact(model.dtype)
        # In half precision, the product of two weights would be rounded once more.
        small = is_small(model) and model.device.type == "cpu" and model.dtype == self._exact
        self._layers = [Layer(layer, model.config, small) for layer in body.layers]
        config: Any = model.config
        width, heads = int(body.layers[0].self_attn.head_dim), int(config.num_key_value_heads)
        count = len(self._layers)
        self._shape = SlotShape(count, heads, width, width, model.dtype, model.device)
        self._norm = Norm(body.norm)
        self._angles = torch.empty(0)
        self._few = small and int(model.config.vocab_size) <= _FEW_TOKENS
        #: What :meth:`_first_states` gives of all tokens, where there are few.
        self._known: tuple[torch.Tensor, torch.Tensor] | None = None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Renew the copies from the model."""
        self._norm.refresh()
        for layer in self._layers:
            layer.refresh()
        if self._few:
            states = self._norm.states(self._body.embed_tokens.weight)
            self._known = states.whole, self._layers[0].project(states)

    def new_cache(self) -> Slots:
        """Slots for the rows of a batch."""
        return Slots(self._shape)

    def arrange(self, cache: Slots, positions: Sequence[int]) -> None:
        """Prepare for steps of rows that have so many tokens."""
        cache.plan = Columns(cache, positions)

    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, width: int, cache: Slots
    ) -> torch.Tensor:
        """Last hidden states, [B, H]; the tokens' keys and values are appended to ``cache``.

        Args:
            tokens: [B].
            positions: [B], tokens that the rows have before.
            width: tokens of the longest row after it.
            cache: of this model.
        """
        states, projected = self._first_states(tokens)
        angles = self._angles_at(positions, width)
        columns: Columns = cache.plan
        columns.advance(positions, width)
        for number, layer in enumerate(self._layers):
            layer.step(states, projected, angles, number, columns)
            projected = None
        return self._norm(states)

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        cache: Slots,
        picks: Sequence[int],
        places: Sequence[int],
    ) -> Prefill:
        """Compute prompts, and give the states of prompt ``picks[i]`` to row ``places[i]``."""
        width = max(map(len, prompts))
        # Padding stands behind, where no token sees it.
        ids = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        tokens = torch.from_numpy(ids).to(self._body.device)
        positions = torch.arange(width, device=tokens.device).expand(len(prompts), -1)
        cache.fill_from(picks, places)
        hidden = self.sequences(tokens, positions, cache=cache)
        return Prefill(prompts, hidden.flatten(0, 1), [width * row for row in range(len(prompts))])

    @torch.no_grad()
    def sequences(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        real: torch.Tensor | None = None,
        cache: Slots | None = None,
    ) -> torch.Tensor:
        """Last hidden states, [B, T, H], of whole sequences.

        Args:
            tokens: [B, T].
            positions: [B, T], each below T.
            real: [B, T], which tokens are not padding; None when all are, or padding stands on the
                right. It gets hidden states that mean nothing.
            cache: gets the keys and values, as it was told.
        """
        rows, length = tokens.shape
        states, projected = self._first_states(tokens.flatten())
        angles = self._angles_at(positions.flatten(), length)
        mask = None
        if real is not None:
            places = torch.arange(length, device=tokens.device)
            distance = places[:, None] - places
            # Padding sees itself, because a softmax over nothing is not a number.
            mask = ((distance >= 0) & real[:, None, None, :]) | (distance == 0)
        for number, layer in enumerate(self._layers):
            keys, values = layer.sequences(states, projected, rows, mask, angles)
            if cache is not None:
                cache.store(number, keys, values)
            projected = None
        return self._norm(states).view(rows, length, -1)

    def _first_states(self, tokens: torch.Tensor) -> tuple[States, torch.Tensor | None]:
        """The first states of tokens, [N], and what the first layer projects them to, if known."""
        if self._known is None:
            return self._norm.states(embedding(tokens, self._body.embed_tokens.weight)), None
        whole, projected = (table.index_select(0, tokens) for table in self._known)
        return States(whole, whole[:, :-1]), projected

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


def has_fast_body(model: PreTrainedModel) -> bool:
    """Whether ``model`` consists of the layers that are known here."""
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


def is_small(model: PreTrainedModel) -> bool:
    """Whether copies of the matrices of ``model`` are worth their memory."""
    return int(model.num_parameters()) <= _MOST_PARAMETERS


def _hooks(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
