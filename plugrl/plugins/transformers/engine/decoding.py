"""The decoding loop with continuous batching: rows join and leave the batch between steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.cache import NARROWEST, RowCache
from plugrl.plugins.transformers.engine.logits import LogitsProcessor
from plugrl.plugins.transformers.engine.request_rows import Row
from plugrl.plugins.transformers.engine.runner import Prefill, Runner
from plugrl.plugins.transformers.engine.sampler import Sampler

#: A batch is made smaller when at least this part of its rows has ended.
_WORTH_DROPPING = 0.25
#: Steps between two looks at the tokens of an accelerator: looking makes the host wait for it.
_LOOK_EVERY = 8
#: Columns to grow by at least; more when the answers are sure to be short or the rows are long.
_GROWTH = 256


class Decoder:
    """A batch of rows over one cache. Not safe for use by several threads at once.

    A row's tokens depend on its request alone, up to rounding: the matrix products of other batch
    sizes are summed in another order. Equal requests in equal order give equal numbers.

    Args:
        runner: computes the logits.
    """

    #: The version of the weights, stamped on each token.
    version: int = 0

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._context = int(getattr(runner.model.config, "max_position_embeddings", 2**31))
        self._on_host = runner.device.type == "cpu"
        self._clear()

    def _clear(self) -> None:
        self._rows: list[Row | None] = []
        self._live = self._length = self._columns = 0
        self._cache: RowCache | None = None
        self._mask: torch.Tensor | None = None
        self._unread: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._unread_top: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._last = self._tensor([])
        self._positions = self._tensor([])[:, None]

    @property
    def live(self) -> int:
        """Rows that are being decoded."""
        return self._live

    @property
    def can_admit(self) -> bool:
        """Whether rows may join now: a model with recurrent layers takes whole batches only."""
        return self._live == 0 or self._runner.mergeable

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """Compute the prompts of ``rows``, equal ones once, and draw the first tokens.

        Returns:
            Rows that have ended: these, or others whose last tokens had not been looked at.
        """
        ended = self._collect_drawn()
        prompts = list(dict.fromkeys(tuple(row.request.prompt_tokens) for row in rows))
        number = {prompt: i for i, prompt in enumerate(prompts)}
        prefill = self._runner.prefill(prompts)
        self._score_prompts(rows, prefill, number)
        ended += [row for row in rows if row.limit == 0]
        joining = [row for row in rows if row.limit > 0]
        if not joining:
            return ended
        picked = [number[tuple(row.request.prompt_tokens)] for row in joining]
        picks = self._tensor(picked)
        logits = self._runner.logits(prefill.hidden[:, -1]).index_select(0, picks)
        sampler = self._sampler_of(joining)
        tokens, logprobs = sampler.draw(logits)
        slots = self._join(joining, prefill, picks, tokens)
        drawn = zip(slots, joining, tokens.tolist(), logprobs.tolist(), strict=True)
        first = [(slot, row) for slot, row, *what in drawn if row.take(*what, self.version)]
        if sampler.top is not None:
            self._give_top(joining, [sampler.top])
        self._refresh(sampler if len(joining) == len(self._rows) else None)
        for slot, row in first:
            ended.append(row)
            self._end(slot)
        return ended

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Draw one more token for every row; returns rows that are seen to have ended."""
        if self._live == 0:
            return []
        ended = self._collect_drawn() if self._length == self._columns else []
        if self._live == 0:
            return ended
        if self._length == self._columns:
            self._rearrange()
            self._refresh()
        assert self._cache is not None
        logits = self._runner.decode(self._last, self._mask, self._positions, self._cache)
        self._length += 1
        if self._length == NARROWEST:
            # What hid the columns that were not used yet may be needed no more.
            self._mask = self._make_mask()
        self._last, logprobs = self._sampler.draw(logits)
        self._positions += 1
        if not self._on_host or self._live < len(self._rows):
            # A row that has ended is decoded until it is dropped, and may run past the context.
            self._positions.clamp_max_(self._context - 1)
        self._unread.append((self._last, logprobs, self.version))
        if self._sampler.top is not None:
            self._unread_top.append(self._sampler.top)
        if self._must_collect():
            ended += self._collect_drawn()
        return ended

    def compact(self) -> None:
        """Drop rows that have ended from the batch when that is worth a copy of the cache."""
        dead = len(self._rows) - self._live
        if self._live and not self._unread and dead >= _WORTH_DROPPING * len(self._rows):
            with torch.inference_mode():
                self._rearrange()
                self._refresh()

    @torch.inference_mode()
    def drop(self, rows: Sequence[Row]) -> list[Row]:
        """Give up ``rows``; returns others that have ended meanwhile."""
        gone = set(map(id, rows))
        ended = [row for row in self._collect_drawn() if id(row) not in gone]
        for slot, row in enumerate(list(self._rows)):
            if row is not None and id(row) in gone:
                self._end(slot)
        return ended

    def clear(self) -> None:
        """Give up all rows."""
        self._clear()

    def _must_collect(self) -> bool:
        """Whether a row may have ended with the tokens just drawn."""
        steps = len(self._unread)
        if self._constrained:
            # What may come next depends on the token.
            return True
        if not self._on_host:
            return steps >= min(_LOOK_EVERY, self._longest)
        if self._text_ends or steps >= self._nearest:
            return True
        return not self._stops.isdisjoint(self._last.tolist())

    def _collect_drawn(self) -> list[Row]:
        """Copy the tokens drawn since the last call to their rows; returns rows that have ended."""
        if not self._unread:
            return []
        unread, self._unread = self._unread, []
        top, self._unread_top = self._unread_top, []
        # One copy to the host for all steps.
        tokens = torch.stack([entry[0] for entry in unread], 1).tolist()
        logprobs = torch.stack([entry[1] for entry in unread], 1).tolist()
        versions = [entry[2] for entry in unread]
        ended, rows = [], list(self._rows)
        for slot, row in enumerate(rows):
            if row is not None and row.take_all(tokens[slot], logprobs[slot], versions):
                ended.append(row)
                self._rows[slot] = None
        if top:
            self._give_top(rows, top)
        if ended:
            self._live -= len(ended)
            self._update_bounds()
        else:
            self._nearest -= len(unread)
            self._longest -= len(unread)
        return ended

    @staticmethod
    def _give_top(
        rows: Sequence[Row | None], top: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Give each row the most probable tokens of the newest steps."""
        steps = [(tokens.tolist(), logprobs.tolist()) for tokens, logprobs in top]
        for slot, row in enumerate(rows):
            if row is not None:
                row.add_top_logprobs([(tokens[slot], values[slot]) for tokens, values in steps])

    def _end(self, slot: int) -> None:
        self._rows[slot] = None
        self._live -= 1
        self._update_bounds()

    def _update_bounds(self) -> None:
        """Update after how many steps a row can end at the earliest and at the latest."""
        if self._live == 0:
            self._clear()
        remaining = [row.limit - len(row.tokens) for row in self._rows if row is not None]
        self._nearest, self._longest = min(remaining, default=0), max(remaining, default=0)

    def _join(
        self, joining: Sequence[Row], prefill: Prefill, picks: torch.Tensor, tokens: torch.Tensor
    ) -> list[int]:
        """Put rows into the batch, in slots of ended ones where they fit; returns the slots."""
        positions = self._tensor([len(row.request.prompt_tokens) for row in joining])[:, None]
        free = [slot for slot, row in enumerate(self._rows) if row is None]
        if len(free) < len(joining) or prefill.width > self._length:
            self._rearrange(prefill, picks, joining)
            self._last = torch.cat([self._last, tokens])
            self._positions = torch.cat([self._positions, positions])
            return list(range(len(self._rows) - len(joining), len(self._rows)))
        slots = free[: len(joining)]
        where = self._tensor(slots)
        assert self._cache is not None
        self._cache.place(where, prefill.cache, picks)
        self._last = self._last.index_copy(0, where, tokens)
        self._positions = self._positions.index_copy(0, where, positions)
        for slot, row in zip(slots, joining, strict=True):
            self._rows[slot] = row
            row.start = self._length - len(row.request.prompt_tokens)
        self._live += len(joining)
        return slots

    def _rearrange(
        self,
        prefill: Prefill | None = None,
        picks: torch.Tensor | None = None,
        joining: Sequence[Row] = (),
    ) -> None:
        """Keep the live rows, append the joining ones, and move all as far left as they go."""
        slots = [slot for slot, row in enumerate(self._rows) if row is not None]
        kept = [row for row in self._rows if row is not None]
        # Recurrent layers have no columns that could be moved.
        first = min((row.start for row in kept), default=0) if self._runner.mergeable else 0
        width = max(self._length - first if kept else 0, prefill.width if prefill else 0)
        columns = self._room(width, [*kept, *joining])
        if self._cache is None or not kept:
            assert prefill is not None
            assert picks is not None
            self._cache = prefill.cache
            self._cache.arrange(picks, width, columns)
        else:
            others = (prefill.cache, picks) if prefill is not None else ()
            self._cache.arrange(self._tensor(slots), width, columns, *others)
        where = self._tensor(slots)
        self._last = self._last.index_select(0, where)
        self._positions = self._positions.index_select(0, where)
        for row in kept:
            row.start += width - self._length
        for row in joining:
            row.start = width - len(row.request.prompt_tokens)
        self._rows = [*kept, *joining]
        self._live, self._length, self._columns = len(self._rows), width, columns

    def _room(self, width: int, rows: Sequence[Row]) -> int:
        needed = max(row.remaining for row in rows) + (0 if self._on_host else _LOOK_EVERY)
        columns = max(width + min(needed, max(_GROWTH, width)), NARROWEST)
        # Attention kernels want rows of the mask to be aligned.
        return -(-columns // 8) * 8

    def _refresh(self, sampler: Sampler | None = None) -> None:
        """Make what depends on which rows there are."""
        self._sampler = sampler or self._sampler_of(self._rows)
        self._mask = self._make_mask()
        looks_for = {row.looks_for for row in self._rows if row is not None}
        self._constrained = any(row is not None and row.matcher is not None for row in self._rows)
        self._text_ends = any(texts for _, texts in looks_for)
        self._stops = frozenset().union(*(stops for stops, _ in looks_for))
        self._update_bounds()

    def _make_mask(self) -> torch.Tensor | None:
        starts = [0 if row is None else row.start for row in self._rows]
        return self._runner.mask(starts, self._length, self._columns)

    def _sampler_of(self, rows: Sequence[Row | None]) -> Sampler:
        idle = SamplingParams(), (0, 0, 0, 0, 0), 0
        what = [
            (row.request.sampling, row.request.stream, len(row.tokens)) if row else idle
            for row in rows
        ]
        params, streams, counts = zip(*what, strict=True)
        processor = LogitsProcessor(rows, self._runner.device)
        return Sampler(
            params,
            streams,
            counts,
            self._runner.device,
            processor if processor.needed else None,
        )

    def _tensor(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._runner.device)

    def _score_prompts(
        self, rows: Sequence[Row], prefill: Prefill, number: dict[tuple[int, ...], int]
    ) -> None:
        scores: dict[tuple[int, float], list[float]] = {}
        for row in rows:
            if row.request.prompt_logprobs:
                heat = row.request.sampling.temperature or 1.0
                key = number[tuple(row.request.prompt_tokens)], heat
                if key not in scores:
                    scores[key] = self._runner.prompt_log_probs(prefill, *key)
                row.prompt_logprobs = list(scores[key])
