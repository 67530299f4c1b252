"""The decoding loop with continuous batching: rows join and leave the batch between steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.plugins.transformers.engine.body import Prefill
from plugrl.plugins.transformers.engine.captured import CHUNK, CapturedSteps, batch_size
from plugrl.plugins.transformers.engine.fast_layer import NARROWEST
from plugrl.plugins.transformers.engine.logits import LogitsProcessor
from plugrl.plugins.transformers.engine.request_rows import Row
from plugrl.plugins.transformers.engine.runner import Runner
from plugrl.plugins.transformers.engine.sampler import Sampler
from plugrl.plugins.transformers.engine.slots import rounded_capacity
from plugrl.plugins.transformers.memory_pool import SharedPool

#: A batch is made smaller when at least this part of its rows has ended.
_WORTH_DROPPING = 0.25
#: Columns to grow by at least on the CPU; more when the answers are sure to be short or the rows
#: are long.
_GROWTH = 256


class Decoder:
    """A batch of rows over one cache. Not safe for use by several threads at once.

    A row's tokens depend on its request alone, up to rounding: the matrix products of other batch
    sizes are summed in another order. Equal requests in equal order give equal numbers.

    Args:
        runner: computes the logits.
        memory: for keys and values; None: it has its own.
    """

    #: The version of the weights, stamped on each token.
    version: int = 0

    def __init__(self, runner: Runner, memory: SharedPool | None = None) -> None:
        self._runner = runner
        self._context = int(getattr(runner.model.config, "max_position_embeddings", 2**31))
        self._cache = runner.body.new_cache()
        self._ahead: CapturedSteps | None = None
        if runner.ahead:
            self._ahead = CapturedSteps(runner, self._cache)
            if memory is not None:
                self._cache.memory = memory
                memory.add(self)
        self._clear()

    def _clear(self) -> None:
        self._last = self._positions = self._tensor([])
        self._rows: list[Row | None] = []
        self._live = self._width = 0
        self._unread: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._unread_top: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self._ahead is None:
            self._cache.release()
        else:
            # What was launched for rows that have ended is of no use.
            for _ in self._ahead.arrived(0):
                pass

    def lend_memory(self) -> None:
        """Let others have the memory of keys and values until rows join, if there are none."""
        if self._live == 0:
            self._cache.lend()

    @property
    def live(self) -> int:
        """Rows that are being decoded."""
        return self._live

    @property
    def can_admit(self) -> bool:
        """Whether rows may join now: some models take whole batches only."""
        return self._live == 0 or self._runner.body.joins

    def most_rows(self, waiting: Iterable[Row], size: int) -> int:
        """How many rows may be decoded at once, at most ``size``, so that the memory suffices."""
        if self._ahead is None:
            return size
        rows = [*waiting, *(row for row in self._rows if row is not None)]
        return min(size, int(self._cache.most_rows(self._capacity_for(rows))))

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """Compute the prompts of ``rows``, equal ones once, and draw the first tokens.

        Returns:
            Rows that have ended: these, or others whose last tokens had not been looked at.
        """
        ended = self._collect_drawn()
        prompts = list(dict.fromkeys(tuple(row.request.prompt_tokens) for row in rows))
        number = {prompt: i for i, prompt in enumerate(prompts)}
        joining = [row for row in rows if row.limit > 0]
        picks = [number[tuple(row.request.prompt_tokens)] for row in joining]
        places = self._places(joining) if joining else []
        prefill = self._runner.prefill(prompts, self._cache, picks, places)
        self._score_prompts(rows, prefill, number)
        ended += [row for row in rows if row.limit == 0]
        if not joining:
            return ended
        logits = self._runner.logits(prefill.lasts(range(len(prompts))))
        logits = logits.index_select(0, torch.tensor(picks, device=logits.device))
        sampler = self._sampler_of(joining)
        tokens, logprobs = sampler.draw(logits)
        drawn = zip(places, joining, tokens.tolist(), logprobs.tolist(), strict=True)
        first = [(place, row) for place, row, *what in drawn if row.take(*what, self.version)]
        if sampler.top is not None:
            self._give_top(joining, [sampler.top])
        for place, row in zip(places, joining, strict=True):
            self._rows[place] = row
        self._live += len(joining)
        for place, row in first:
            ended.append(row)
            self._rows[place] = None
            self._live -= 1
        alone = self._ahead is None and places == list(range(len(self._rows)))
        self._refresh(sampler if alone else None)
        return ended

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Draw more tokens for every row; returns rows that are seen to have ended."""
        if self._live == 0:
            return []
        if self._ahead is not None:
            return self._step_ahead(self._ahead)
        ended = self._collect_drawn() if self._width == self._cache.capacity else []
        if self._live == 0:
            return ended
        if self._width == self._cache.capacity:
            self._drop_ended()
            self._cache.reserve(len(self._rows), self._columns([]), len(self._rows))
            self._refresh()
        self._width += 1
        logits = self._runner.decode(self._last, self._positions, self._width, self._cache)
        self._last, logprobs = self._sampler.draw(logits)
        self._positions += 1
        if self._live < len(self._rows):
            # A row that has ended is decoded until it is dropped, and may run past the context.
            most = min(self._context, self._cache.capacity) - 1
            self._positions.clamp_max_(most)
        self._unread.append((self._last, logprobs, self.version))
        if self._sampler.top is not None:
            self._unread_top.append(self._sampler.top)
        if self._must_collect():
            ended += self._collect_drawn()
        return ended

    def _step_ahead(self, steps: CapturedSteps) -> list[Row]:
        """Launch a chunk of steps, and look at those before it."""
        count = 1 if self._constrained else min(CHUNK, max(1, self._longest))
        steps.launch(count, self.version)
        self._longest -= count
        # The last chunk is waited for, and so is a token that says what may follow it.
        return self._look(0 if self._constrained or self._longest <= 0 else 1)

    def _look(self, most_pending: int) -> list[Row]:
        """Give rows the tokens that have arrived; returns rows that have ended."""
        assert self._ahead is not None
        ended = []
        for chunk in self._ahead.arrived(most_pending):
            tokens, logprobs = chunk.tokens.T.tolist(), chunk.logprobs.T.tolist()
            ended += self._take(tokens, logprobs, [chunk.version] * len(chunk.tokens), chunk.top)
        return ended

    @torch.inference_mode()
    def compact(self) -> list[Row]:
        """Drop rows that have ended from the batch when that is worth moving others.

        Returns:
            Others that were seen to have ended.
        """
        if not self._live or (self._ahead is None and self._unread):
            return []
        dead = len(self._rows) - self._live
        if self._ahead is None and dead < _WORTH_DROPPING * len(self._rows):
            return []
        if self._ahead is not None and batch_size(self._live) == len(self._rows):
            return []
        ended = self._collect_drawn()
        if self._live:
            self._drop_ended()
            self._refresh()
        return ended

    @torch.inference_mode()
    def drop(self, rows: Sequence[Row]) -> list[Row]:
        """Give up ``rows``; returns others that have ended meanwhile."""
        gone = set(map(id, rows))
        ended = [row for row in self._collect_drawn() if id(row) not in gone]
        for place, row in enumerate(list(self._rows)):
            if row is not None and id(row) in gone:
                self._rows[place] = None
                self._live -= 1
        self._update_bounds()
        if self._live and self._ahead is not None:
            self._refresh()
        return ended

    def _must_collect(self) -> bool:
        """Whether a row may have ended with the token just drawn."""
        if self._constrained or self._text_ends or len(self._unread) >= self._nearest:
            return True
        return not self._stops.isdisjoint(self._last.tolist())

    def _collect_drawn(self) -> list[Row]:
        """Give rows the tokens drawn since the last call; returns rows that have ended."""
        if self._ahead is not None:
            return self._look(0)
        if not self._unread:
            return []
        unread, self._unread = self._unread, []
        top, self._unread_top = self._unread_top, []
        # One copy to the host for all steps.
        tokens = torch.stack([entry[0] for entry in unread], 1).tolist()
        logprobs = torch.stack([entry[1] for entry in unread], 1).tolist()
        return self._take(tokens, logprobs, [entry[2] for entry in unread], top)

    def _take(
        self,
        tokens: list[list[int]],
        logprobs: list[list[float]],
        versions: Sequence[int],
        top: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> list[Row]:
        ended, rows = [], list(self._rows)
        for place, row in enumerate(rows):
            if row is not None and row.take_all(tokens[place], logprobs[place], versions):
                ended.append(row)
                self._rows[place] = None
        if top:
            self._give_top(rows, top)
        if ended:
            self._live -= len(ended)
            self._update_bounds()
        elif self._ahead is None:
            self._nearest -= len(versions)
        return ended

    @staticmethod
    def _give_top(
        rows: Sequence[Row | None], top: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Give each row the most probable tokens of the newest steps."""
        steps = [(tokens.tolist(), logprobs.tolist()) for tokens, logprobs in top]
        for place, row in enumerate(rows):
            if row is not None:
                row.add_top_logprobs([(tokens[place], values[place]) for tokens, values in steps])

    def _update_bounds(self) -> None:
        """Update after how many steps a row can end at the earliest and at the latest."""
        if self._live == 0:
            self._clear()
        remaining = [row.remaining for row in self._rows if row is not None]
        self._nearest, self._longest = min(remaining, default=0), max(remaining, default=0)

    def _places(self, joining: Sequence[Row]) -> list[int]:
        """Where rows join: in places of ended ones first; the cache has room for them then."""
        free = [place for place, row in enumerate(self._rows) if row is None]
        kept = len(self._rows)
        more = len(joining) - len(free)
        if more > 0:
            size = kept + more if self._ahead is None else batch_size(kept + more)
            free += range(kept, size)
            self._rows += [None] * (size - kept)
        if self._ahead is None:
            capacity = max(self._cache.capacity if kept else 0, self._columns(joining))
        else:
            capacity = self._capacity_for([*joining, *(r for r in self._rows if r is not None)])
        self._cache.reserve(len(self._rows), capacity, kept if self._live else 0)
        return free[: len(joining)]

    def _capacity_for(self, rows: Sequence[Row]) -> int:
        """Columns for whole answers, and one for steps that are tried."""
        longest = max(len(row.request.prompt_tokens) + row.limit for row in rows)
        return rounded_capacity(longest + 1)

    def _columns(self, joining: Sequence[Row]) -> int:
        """Columns that are enough for a while."""
        rows = [*joining, *(row for row in self._rows if row is not None)]
        width = max(len(row.request.prompt_tokens) + len(row.tokens) for row in rows)
        needed = max(row.remaining for row in rows)
        # Attention kernels want rows of the mask to be aligned.
        columns = max(width, self._width) + min(needed, max(_GROWTH, width))
        return max(-(-columns // 8) * 8, NARROWEST)

    def _drop_ended(self) -> None:
        """Move rows from the end of the batch to the places of those that have ended."""
        size = self._live if self._ahead is None else batch_size(self._live)
        holes = [place for place, row in enumerate(self._rows[:size]) if row is None]
        order = list(range(size))
        moving = (place for place in range(size, len(self._rows)) if self._rows[place] is not None)
        for hole, place in zip(holes, moving, strict=False):
            order[hole] = place
        self._cache.keep(order)
        self._rows = [self._rows[place] for place in order]

    def _refresh(self, sampler: Sampler | None = None) -> None:
        """Make what depends on which rows there are."""
        self._update_bounds()
        if self._live == 0:
            return
        rows = self._rows
        self._sampler = sampler or self._sampler_of(rows)
        self._constrained = any(row is not None and row.matcher is not None for row in rows)
        # The last token is not in the cache yet.
        lengths = [
            0 if row is None else len(row.request.prompt_tokens) + len(row.tokens) - 1
            for row in rows
        ]
        if self._ahead is not None:
            self._ahead.load(rows, lengths, self._sampler)
            return
        self._width = max(lengths)
        # Rows of one length take fewer operations, and those that have ended have any.
        lengths = [length or self._width for length in lengths]
        looks_for = {row.looks_for for row in rows if row is not None}
        self._text_ends = any(texts for _, texts in looks_for)
        self._stops = frozenset().union(*(stops for stops, _ in looks_for))
        self._last = self._tensor([row.tokens[-1] if row else 0 for row in rows])
        self._positions = self._tensor(lengths)
        self._runner.body.arrange(self._cache, lengths)

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
