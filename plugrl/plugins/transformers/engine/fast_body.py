"""A fast forward pass of Llama-shaped models, without gradients.

When it decodes one token per row, a small model spends most of its time between operations. Here a
layer takes about 25 of them instead of 80: projections that share an input are one matrix, rotary
positions multiply complex numbers, and scores are batched products over the cache. The runner uses
it for a model only after both gave equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import embedding

from plugrl.plugins.transformers.engine.cache import RowCache
from plugrl.plugins.transformers.engine.fast_layer import Layer
from plugrl.plugins.transformers.engine.fast_models import is_small
from plugrl.plugins.transformers.engine.norms import Norm, States, exact

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The table of angles grows by this many positions.
_POSITIONS = 1024
#: Of so few tokens, all are computed up to the first positions whenever the weights change.
_FEW_TOKENS = 2048


class FastBody:
    """The layers of a model, for one more token a row or for whole sequences, without gradients.

    The model is only read, and its parameters stay what they are. The matrices of queries, keys and
    values are copies in another order, of a small model on the CPU all matrices are copies, and
    :meth:`refresh` renews them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.base_model
        self._body = body
        self._exact = exact(model.dtype)
        # In half precision, the product of two weights would be rounded once more.
        small = is_small(model) and model.device.type == "cpu" and model.dtype == self._exact
        self._layers = [Layer(layer, model.config, small) for layer in body.layers]
        self.key_heads = int(model.config.num_key_value_heads)
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
        states, projected = self._first_states(tokens)
        # A row is in the first column at the earliest, so no position reaches the length.
        angles = self._angles_at(positions[:, 0], cache.get_seq_length())
        for layer, cached in zip(self._layers, cache.layers, strict=True):
            layer.step(states, projected, mask, angles, cached)
            projected = None
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
        states, projected = self._first_states(tokens.flatten())
        angles = self._angles_at(positions.flatten(), length)
        mask = None
        if real is not None:
            places = torch.arange(length, device=tokens.device)
            distance = places[:, None] - places
            # Padding sees itself, because a softmax over nothing is not a number.
            mask = ((distance >= 0) & real[:, None, None, :]) | (distance == 0)
        for number, layer in enumerate(self._layers):
            cached = None if cache is None else cache.layers[number]
            layer.sequences(states, projected, rows, mask, angles, cached)
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
