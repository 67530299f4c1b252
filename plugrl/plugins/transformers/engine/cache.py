"""A key-value cache whose rows come and go while others are being decoded.

All rows write in one column, so a row with fewer tokens starts further right; what lies left of
its start is masked. The buffers have room to grow, so that a step copies one column alone.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

#: A softmax over fewer columns goes through them one by one, and takes up to ten times as long.
NARROWEST = 16


class RowLayer(DynamicLayer):
    """Keys and values of one layer: buffers [B, H, columns, D], of which ``length`` are used.

    A layer with a sliding window keeps all columns too: the model's mask hides the old ones.
    """

    def __init__(self, is_sliding: bool) -> None:
        super().__init__()
        self.is_sliding = is_sliding
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states behind the others; returns all of them as views."""
        start, added = self.length, key_states.shape[-2]
        self.length = start + added
        if start == 0:
            self._buffers = (key_states, value_states)
            self.is_initialized = True
        else:
            keys, values = self._buffers
            keys.narrow(2, start, added).copy_(key_states)
            values.narrow(2, start, added).copy_(value_states)
        # Some models read the states of another layer from these attributes.
        self.keys, self.values = (buffer.narrow(2, 0, self.length) for buffer in self._buffers)
        return self.keys, self.values

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one column, [B * H, D] each; returns all used columns, [B * H, columns, D].

        The columns are at least :data:`NARROWEST`; a mask must hide the surplus.
        """
        start, self.length = self.length, self.length + 1
        all_keys, all_values = self._flat
        all_keys.select(1, start).copy_(keys)
        all_values.select(1, start).copy_(values)
        seen = max(self.length, NARROWEST)
        return all_keys.narrow(1, 0, seen), all_values.narrow(1, 0, seen)

    def get_seq_length(self) -> int:
        """Columns that are used."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the states that attention sees."""
        return self.length + query_length, 0

    def arrange(
        self, rows: torch.Tensor, width: int, columns: int, other: RowLayer | None, picks: Any
    ) -> None:
        """Keep ``rows``, then ``picks`` of ``other``, in new buffers; ends align at ``width``."""
        if not self.is_initialized:
            return
        kept, more = len(rows), len(picks) if other is not None else 0
        made = []
        for number, old in enumerate(self._buffers):
            new = old.new_empty(kept + more, old.shape[1], columns, old.shape[3])
            # Zeros: a masked NaN still makes the weighted sum NaN. Later columns are read only
            # after they were written.
            new[:, :, : max(width, NARROWEST)] = 0
            used = min(self.length, width)
            states = old.narrow(2, self.length - used, used).index_select(0, rows)
            new[:kept, :, width - used : width] = states
            if other is not None:
                states = other._buffers[number].narrow(2, 0, other.length)
                new[kept:, :, width - other.length : width] = states.index_select(0, picks)
            made.append(new)
        self._buffers = (made[0], made[1])
        self._flat = (made[0].flatten(0, 1), made[1].flatten(0, 1))
        self.length = width

    def place(self, slots: torch.Tensor, other: RowLayer, picks: torch.Tensor) -> None:
        """Overwrite the rows ``slots`` by ``picks`` of ``other``, which has no more columns."""
        if not self.is_initialized:
            return
        for mine, theirs in zip(self._buffers, other._buffers, strict=True):
            states = theirs.narrow(2, 0, other.length).index_select(0, picks)
            mine[slots, :, self.length - other.length : self.length] = states


class RowCache(DynamicCache):
    """The cache of a model, with :class:`RowLayer` for each layer of attention.

    ``mergeable`` is False for a model that also has layers of another kind, such as recurrent
    ones. It keeps the layers of ``transformers`` then, and its rows can be selected only.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        kinds = {type(layer) for layer in self.layers}
        self.mergeable = bool(kinds) and kinds <= {DynamicLayer, DynamicSlidingWindowLayer}
        self.plain = kinds == {DynamicLayer}
        if self.mergeable:
            self.layers = [RowLayer(bool(layer.is_sliding)) for layer in self.layers]

    def arrange(
        self,
        rows: torch.Tensor,
        width: int,
        columns: int,
        other: RowCache | None = None,
        picks: torch.Tensor | None = None,
    ) -> None:
        """Keep ``rows`` and append rows of ``other``.

        Args:
            rows: indices of the rows to keep, in their new order; one may come several times.
            width: columns that are used afterwards; the rows are cut or moved to end there.
            columns: columns that there is room for afterwards.
            other: a cache of rows to append.
            picks: which of them; one may come several times.
        """
        if not self.mergeable:
            self.reorder_cache(rows)  # type: ignore[arg-type]
            return
        others = other.layers if other is not None else [None] * len(self.layers)
        for layer, appended in zip(self.layers, others, strict=True):
            layer.arrange(rows, width, columns, appended, picks)

    def place(self, slots: torch.Tensor, other: RowCache, picks: torch.Tensor) -> None:
        """Overwrite the rows ``slots`` by ``picks`` of ``other``."""
        for layer, appended in zip(self.layers, other.layers, strict=True):
            layer.place(slots, appended, picks)
