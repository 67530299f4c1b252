"""The layers of ``transformers`` over slots, with the engine's own attention, for any family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plugrl.plugins.transformers.engine.attention import NAME, Fill, attention
from plugrl.plugins.transformers.engine.body import Prefill
from plugrl.plugins.transformers.engine.projections import JoinedProjections
from plugrl.plugins.transformers.engine.slots import Slots, SlotShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Tokens of prompts that are computed in one pass.
_PASS = 32_768


class SlotBody:
    """Every module of the model but attention is that of ``transformers``.

    Args:
        model: a causal language model, in evaluation mode; it is left as it is between passes.
        body: gives its hidden states.
        projections: layers that are computed together; None: each is computed alone.

    Raises:
        NotImplementedError: its layers do not fit: some keep a state of another kind, differ in
            their keys, or do not ask for attention by name.
    """

    joins = True

    def __init__(
        self,
        model: PreTrainedModel,
        body: Callable[..., Any],
        projections: JoinedProjections | None = None,
    ) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, attention)
        self._model, self._body = model, body
        self._projections = projections
        self._device = model.device
        # Some keep the configuration of their text apart.
        text = model.config.get_text_config(decoder=True)
        self._configs: list[Any] = list({id(c): c for c in (model.config, text)}.values())
        self._attached: tuple[Slots | None, int] = (None, 0)
        self._modules: list[Any] = []
        self._shape = self._find_layers()

    def new_cache(self) -> Slots:
        """Slots for the rows of a batch."""
        return Slots(self._shape)

    def arrange(self, cache: Slots, positions: Sequence[int]) -> None:
        """Nothing is to be prepared."""

    def refresh(self) -> None:
        """There are no copies of weights."""

    @torch.no_grad()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        cache: Slots,
        picks: Sequence[int],
        places: Sequence[int],
    ) -> Prefill:
        """Compute prompts, and give the states of prompt ``picks[i]`` to row ``places[i]``."""
        goes_to: list[list[int]] = [[] for _ in prompts]
        for pick, place in zip(picks, places, strict=True):
            goes_to[pick].append(place)
        parts, starts, total = [], [], 0
        for first, last in _parts([len(prompt) for prompt in prompts]):
            part = prompts[first:last]
            parts.append(self._pass(part, cache, goes_to[first:last]))
            for prompt in part:
                starts.append(total)
                total += len(prompt)
        return Prefill(prompts, parts[0] if len(parts) == 1 else torch.cat(parts), starts)

    @torch.no_grad()
    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, width: int, cache: Slots
    ) -> torch.Tensor:
        """Last hidden states, [B, H], after one more token of each row."""
        with self._attending(cache):
            hidden: torch.Tensor = self._body(
                input_ids=tokens[:, None],
                position_ids=positions[:, None],
                use_cache=False,
                slot_positions=positions,
            ).last_hidden_state
        return hidden[:, -1]

    def _pass(
        self,
        prompts: Sequence[Sequence[int]],
        cache: Slots | None,
        goes_to: Sequence[Sequence[int]],
        seen: list[Any] | None = None,
    ) -> torch.Tensor:
        """Hidden states of prompts side by side, [N, H]."""
        lengths = np.array([len(prompt) for prompt in prompts])
        starts, width = lengths.cumsum() - lengths, int(lengths.max())
        columns = np.arange(width)
        rows = starts[:, None] + np.minimum(columns, lengths[:, None] - 1)
        real = columns < lengths[:, None]
        positions = np.broadcast_to(columns, real.shape)[real]
        kept = [(n, place) for n, own in enumerate(goes_to) for place in own]
        empty = np.zeros(0, dtype=np.int64)
        source = [starts[n] + np.arange(lengths[n]) for n, _ in kept]
        slots = [np.full(lengths[n], place) for n, place in kept]
        within = [np.arange(lengths[n]) for n, _ in kept]
        fill = Fill(
            *(
                self._on_device(values)
                for values in (
                    rows,
                    real.ravel().nonzero()[0],
                    np.concatenate([empty, *source]),
                    np.concatenate([empty, *slots]),
                    np.concatenate([empty, *within]),
                )
            ),
            seen=seen,
        )
        tokens = np.concatenate([np.asarray(prompt, dtype=np.int64) for prompt in prompts])
        with self._attending(cache):
            hidden: torch.Tensor = self._body(
                input_ids=self._on_device(tokens)[None],
                position_ids=self._on_device(positions)[None],
                use_cache=False,
                slot_fill=fill,
            ).last_hidden_state
        return hidden[0]

    @torch.no_grad()
    def _find_layers(self) -> SlotShape:
        """Which modules attend, and what their keys and values are like."""
        seen: list[tuple[torch.nn.Module, torch.Tensor, torch.Tensor]] = []
        self._pass([[1, 1], [1]], None, [[], []], seen)
        self._modules = [module for module, _, _ in seen]
        shapes = {(k.shape[1], k.shape[3], v.shape[3]) for _, k, v in seen}
        wanted = self._configs[-1].num_hidden_layers
        if len(shapes) != 1 or len({id(m) for m in self._modules}) != wanted:
            raise NotImplementedError("layers that do not all have keys and values of one shape")
        ((heads, key_width, value_width),) = shapes
        return SlotShape(wanted, heads, key_width, value_width, seen[0][1].dtype, self._device)

    @contextmanager
    def _attending(self, cache: Slots | None) -> Iterator[None]:
        """Let the layers attend over ``cache``; the model is as before afterwards."""
        if cache is not None and self._attached != (cache, cache.layout):
            self._attached = (cache, cache.layout)
            for number, module in enumerate(self._modules):
                module.slot_keys, module.slot_values = cache.keys[number], cache.values[number]
        before = [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            with self._projections.active() if self._projections else nullcontext():
                yield
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name

    def _on_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self._device)


def _parts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Prompts that are computed in one pass: from one number up to another."""
    first = tokens = 0
    for number, length in enumerate(lengths):
        if number > first and tokens + length > _PASS:
            yield first, number
            first, tokens = number, 0
        tokens += length
    yield first, len(lengths)
