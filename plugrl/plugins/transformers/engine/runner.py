"""Forward passes over a :class:`RowCache`, for any decoder of ``transformers``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from plugrl.plugins.transformers.engine.cache import NARROWEST, RowCache
from plugrl.plugins.transformers.engine.fast_body import FastBody
from plugrl.plugins.transformers.engine.fast_models import has_fast_body
from plugrl.plugins.transformers.engine.head import body_and_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Positions whose logits over the vocabulary are in memory at once.
_HEAD_CHUNK = 1024


@dataclass(slots=True)
class Prefill:
    """Prompts that were computed: right-aligned rows of ``width`` columns."""

    prompts: Sequence[Sequence[int]]
    width: int
    hidden: torch.Tensor
    cache: RowCache


class Runner:
    """Computes logits with a model; knows how it wants its cache, mask and positions.

    Args:
        model: a causal language model, in evaluation mode.
        pad_token_id: what fills the rows of shorter prompts.
    """

    def __init__(self, model: PreTrainedModel, pad_token_id: int) -> None:
        self.model = model
        self.device = model.device
        self._pad = pad_token_id
        self._body, self._head = body_and_head(model)
        accepted = inspect.signature(model.base_model.forward).parameters
        # transformers 5.24 renamed the argument.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._takes_positions = "position_ids" in accepted
        cache = RowCache(model.config)
        self.mergeable = cache.mergeable
        # An additive mask is taken as it is by every model whose layers are alike and that lets
        # others attend for it; otherwise the model makes its own from zeros and ones.
        self.adds_mask = (
            cache.mergeable
            and cache.plain
            and bool(getattr(model, "_supports_attention_backend", False))
            and getattr(model.config, "_attn_implementation", None) in ("sdpa", "eager")
        )
        self.dtype = model.dtype
        self._fast_body: FastBody | None = None
        if self.adds_mask and has_fast_body(model):
            expected = self._trial()
            self._fast_body = FastBody(model)
            # Half precision rounds differently in every layer, so whole vectors are compared.
            apart = (self._trial() - expected).norm() / expected.norm()
            if not float(apart) < (1e-4 if self.dtype == torch.float32 else 0.05):
                self._fast_body = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefill:
        """Compute prompts of any lengths, left-padded to the longest."""
        width = max(map(len, prompts))
        ids = np.full((len(prompts), width), self._pad, dtype=np.int64)
        mask = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        positions = self._on_device((mask.cumsum(1) - 1).clip(0))
        cache = RowCache(self.model.config)
        tokens, real = self._on_device(ids), None if mask.all() else self._on_device(mask)
        if self._fast_body is None:
            hidden = self._forward(tokens, real, positions, cache)
        else:
            hidden = self._fast_body.sequences(
                tokens, positions, None if real is None else real != 0, cache
            )
        return Prefill(prompts, width, hidden, cache)

    def decode(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RowCache,
    ) -> torch.Tensor:
        """Logits [B, V] after one more token a row.

        Args:
            tokens: [B].
            mask: what :meth:`mask` made.
            positions: [B, 1], of the tokens in their own sequences.
            cache: gets the tokens' keys and values.
        """
        return self._head(self._after(tokens, mask, positions, cache))

    def _after(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RowCache,
    ) -> torch.Tensor:
        """Last hidden states, [B, H]."""
        used = cache.get_seq_length() + 1
        if self._fast_body is None:
            mask = mask if mask is None else mask.narrow(-1, 0, used)
            return self._forward(tokens[:, None], mask, positions, cache)[:, -1]
        if mask is not None:
            if used <= NARROWEST:
                mask[..., used - 1] = 0
            mask = mask.narrow(-1, 0, max(used, NARROWEST))
        return self._fast_body.step(tokens, mask, positions, cache)

    def refresh(self) -> None:
        """To be called when the model has got other weights."""
        if self._fast_body is not None:
            self._fast_body.refresh()

    @torch.no_grad()
    def _trial(self) -> torch.Tensor:
        """Hidden states of two rows, one of them shorter, that two tokens follow."""
        most = int(self.model.config.vocab_size) - 1
        prefill = self.prefill([[0, most, most // 2], [most // 3]])
        prefill.cache.arrange(torch.arange(2, device=self.device), 3, NARROWEST)
        mask, seen = self.mask([0, 2], 3, NARROWEST), [prefill.hidden[0], prefill.hidden[1, -1:]]
        for step in range(2):
            tokens = torch.tensor([most // 2, step], device=self.device)
            positions = torch.tensor([[3 + step], [1 + step]], device=self.device)
            seen.append(self._after(tokens, mask, positions, prefill.cache))
        return torch.cat(seen).float()

    def mask(self, starts: Sequence[int], used: int, columns: int) -> torch.Tensor | None:
        """A mask that hides what lies left of each row's start; None when nothing is hidden.

        Args:
            starts: the first column of each row.
            used: columns that are filled; :meth:`decode` fills the others one by one.
            columns: all of them.
        """
        narrow = self._fast_body is not None and used < NARROWEST
        if not any(starts) and not narrow:
            return None
        begin = torch.tensor(starts, device=self.device)[:, None]
        places = torch.arange(columns, device=self.device)
        seen = places >= begin
        if not self.adds_mask:
            return seen.long()
        if narrow:
            seen &= (places < used) | (places >= NARROWEST)
        added = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        added.masked_fill_(~seen, -torch.inf)
        if self._fast_body is None:
            return added[:, None, None, :]
        # Batched products have a row for each head that has keys of its own.
        return added.repeat_interleave(self._fast_body.key_heads, 0)[:, None, :]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary, float32."""
        return self._head(hidden)

    def prompt_log_probs(self, prefill: Prefill, row: int, temperature: float) -> list[float]:
        """Log-probability of each token of a prompt given the ones before it, 0.0 first."""
        prompt = prefill.prompts[row]
        hidden = prefill.hidden[row, prefill.width - len(prompt) : -1]
        targets = torch.tensor(prompt[1:], device=self.device)
        out = [0.0]
        for start in range(0, len(targets), _HEAD_CHUNK):
            logits = self.logits(hidden[start : start + _HEAD_CHUNK])
            if temperature != 1:
                logits = logits / temperature
            wanted = targets[start : start + _HEAD_CHUNK]
            out += (-cross_entropy(logits, wanted, reduction="none")).tolist()
        return out

    def _forward(
        self,
        input_ids: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: RowCache,
    ) -> torch.Tensor:
        options: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:
            options["position_ids"] = positions
        hidden: torch.Tensor = self._body(
            input_ids=input_ids, attention_mask=mask, use_cache=True, **options
        ).last_hidden_state
        return hidden

    def _on_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)
