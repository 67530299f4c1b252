"""Whole batches over the cache of ``transformers``, for models that do not fit slots."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plugrl.plugins.transformers.engine.body import Prefill

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WholeCache:
    """The cache of a model for rows that began together, padded on the left."""

    def __init__(self) -> None:
        self.capacity = 2**31
        self.states: Any = None
        self.mask: torch.Tensor | None = None

    def reserve(self, rows: int, capacity: int, kept: int) -> None:
        """The cache grows by itself."""

    def most_rows(self, capacity: int) -> int:
        """There is no bound that is known."""
        return 2**31

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row ``order[i]`` is."""
        assert self.mask is not None
        rows = torch.tensor(order, device=self.mask.device)
        self.states.reorder_cache(rows)
        self.mask = self.mask.index_select(0, rows)

    def release(self) -> None:
        """Give the memory back."""
        self.states = self.mask = None


class WholeBody:
    """Hands every step to the model with its own cache and mask, as ``generate`` does."""

    joins = False

    def __init__(self, model: PreTrainedModel, body: Callable[..., Any], pad: int) -> None:
        self._model, self._body, self._pad = model, body, pad
        accepted = inspect.signature(model.base_model.forward).parameters
        # transformers 5.24 renamed the argument.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._takes_positions = "position_ids" in accepted

    def new_cache(self) -> WholeCache:
        """A cache for one batch."""
        return WholeCache()

    def arrange(self, cache: WholeCache, positions: Sequence[int]) -> None:
        """Nothing is to be prepared."""

    def refresh(self) -> None:
        """There are no copies of weights."""

    @torch.no_grad()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        cache: WholeCache,
        picks: Sequence[int],
        places: Sequence[int],
    ) -> Prefill:
        """Compute prompts, padded on the left; row i begins with prompt ``picks[i]``."""
        from transformers import DynamicCache

        width = max(map(len, prompts))
        ids = np.full((len(prompts), width), self._pad, dtype=np.int64)
        mask = np.zeros((len(prompts), width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        positions = (mask.cumsum(1) - 1).clip(0)
        tokens, real, at = (
            torch.from_numpy(values).to(self._model.device) for values in (ids, mask, positions)
        )
        cache.states = DynamicCache(config=self._model.config)
        hidden = self._forward(tokens, real, at, cache)
        cache.mask = real
        if picks:
            cache.keep(picks)
        starts = [width * (row + 1) - len(prompt) for row, prompt in enumerate(prompts)]
        return Prefill(prompts, hidden.flatten(0, 1), starts)

    @torch.no_grad()
    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, width: int, cache: WholeCache
    ) -> torch.Tensor:
        """Last hidden states, [B, H], after one more token of each row."""
        assert cache.mask is not None
        cache.mask = torch.nn.functional.pad(cache.mask, (0, 1), value=1)
        return self._forward(tokens[:, None], cache.mask, positions[:, None], cache)[:, -1]

    def _forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: WholeCache
    ) -> torch.Tensor:
        options: dict[str, Any] = {self._cache_name: cache.states}
        if self._takes_positions:
            options["position_ids"] = positions
        hidden: torch.Tensor = self._body(
            input_ids=tokens, attention_mask=mask, use_cache=True, **options
        ).last_hidden_state
        return hidden
