"""Decode steps on an accelerator: a step with its sampling is captured once and replayed.

The host launches steps ahead and looks at their tokens later, so that the accelerator never waits
for it. Rows that end, by a stop token or at their limit, are noticed on the device: they attend to
nothing from then on, until the host drops them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from plugrl.core.run.process.compiler import compiler_failure
from plugrl.core.run.process.memory import lacks_memory
from plugrl.plugins.transformers.engine.request_rows import Row
from plugrl.plugins.transformers.engine.runner import Runner
from plugrl.plugins.transformers.engine.sampler import Sampler
from plugrl.plugins.transformers.engine.streams import CAPTURING

logger = logging.getLogger(__name__)

#: Steps that are launched together, and copied to the host together.
CHUNK = 8
#: Batches have one of these sizes, and of multiples of the last one.
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


def batch_size(rows: int) -> int:
    """The size of a batch of so many rows."""
    most = SIZES[-1]
    if rows > most:
        return -(-rows // most) * most
    return next(size for size in SIZES if size >= rows)


@dataclass
class Chunk:
    """Steps on their way to the host.

    Attributes:
        tokens, logprobs: [steps, B].
        version: of the weights.
        top: what :attr:`Sampler.top` was at each step, when asked for.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    version: int
    arrived: Any
    top: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class CapturedSteps:
    """The steps of one decoder, captured for each size and kind of batch.

    Args:
        runner: computes the logits.
        cache: of the decoder.
    """

    def __init__(self, runner: Runner, cache: Any) -> None:
        self._runner, self._cache = runner, cache
        #: Memory that all captured steps use, since one is replayed at a time.
        self._pool = torch.cuda.graph_pool_handle() if runner.device.type == "cuda" else None
        #: Of its own, because libraries keep scratch memory for each stream that is captured on:
        #: steps of two decoders may be replayed at once. Captured kernels keep its precedence.
        on_device = runner.device.type == "cuda"
        self._stream = torch.cuda.Stream(priority=-1) if on_device else None
        self._steps: dict[tuple[object, ...], _Step] = {}
        self._pending: deque[Chunk] = deque()
        self._generation = -1

    @torch.inference_mode()
    def load(self, rows: Sequence[Row | None], positions: Sequence[int], sampler: Sampler) -> None:
        """Go on with these rows: each has drawn its last token, which is not in its slot yet."""
        runner, cache = self._runner, self._cache
        if self._generation != cache.generation:
            # Captured steps know the addresses of the slots.
            self._steps.clear()
            self._generation = cache.generation
        stops = max((len(r.request.sampling.stop_token_ids) for r in rows if r), default=0)
        width = -(-stops // 4) * 4
        kind: tuple[object, ...] = (len(rows), cache.rows, cache.capacity, width)
        kind = (*kind, runner.compiler.active, sampler.processed, *sampler.kind)
        if kind not in self._steps:
            where = (self._pool, self._stream)
            self._steps[kind] = _Step(runner, cache, sampler, len(rows), width, where)
        self._step = self._steps[kind]
        self._step.load(rows, positions, sampler)

    @torch.inference_mode()
    def launch(self, count: int, version: int) -> None:
        """Launch so many steps."""
        step = self._step
        top = []
        for number in range(count):
            step.run(number)
            if step.sampler.top is not None:
                top.append(step.sampler.top)
        self._runner.compiler.count(count)
        tokens, logprobs = step.tokens_of[:count], step.logprobs_of[:count]
        if tokens.device.type == "cpu":
            self._pending.append(Chunk(tokens.clone(), logprobs.clone(), version, None, top))
            return
        # Copied on the stream of the steps, before the next ones overwrite them.
        there = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in (tokens, logprobs)]
        for mine, theirs in zip(there, (tokens, logprobs), strict=True):
            mine.copy_(theirs, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._pending.append(Chunk(there[0], there[1], version, arrived, top))

    def arrived(self, most_pending: int) -> Iterator[Chunk]:
        """Chunks in order, waiting for them, until at most so many are on their way."""
        while len(self._pending) > most_pending:
            chunk = self._pending.popleft()
            if chunk.arrived is not None:
                chunk.arrived.synchronize()
            yield chunk


class _Step:
    """One decode step of a batch of fixed size, over tensors that stay where they are."""

    def __init__(
        self, runner: Runner, cache: Any, sampler: Sampler, size: int, stops: int, where: Any
    ) -> None:
        device = runner.device
        self._runner, self._cache = runner, cache
        self.sampler = sampler
        self._eager_tail = sampler.processed or sampler.most_top > 0
        self._tokens = torch.zeros(size, dtype=torch.long, device=device)
        # A column that no row uses: a step that is tried must not overwrite what is there.
        self._positions = torch.full_like(self._tokens, cache.capacity - 1)
        self._room = torch.zeros_like(self._tokens)
        self._stops = torch.full((size, stops), -1, dtype=torch.long, device=device)
        self._at = torch.zeros(1, dtype=torch.long, device=device)
        self.tokens_of = torch.zeros(CHUNK, size, dtype=torch.long, device=device)
        self.logprobs_of = torch.zeros(CHUNK, size, device=device)
        self._logits: torch.Tensor | None = None
        self._graph: Any = None
        self._tail = self._finish
        if device.type == "cuda" and runner.captures:
            # Trying the step moves its counters on.
            self.sampler = sampler.copy()
            with CAPTURING:
                self._graph = self._captured(*where)

    def load(self, rows: Sequence[Row | None], positions: Sequence[int], sampler: Sampler) -> None:
        """Take over the rows of a batch."""
        device = self._tokens.device
        if self._graph is None or self._eager_tail:
            self.sampler = sampler
        else:
            self.sampler.take_over(sampler)
        live = [(row.tokens[-1], row.remaining) if row else (0, 0) for row in rows]
        at = [place if row else 0 for row, place in zip(rows, positions, strict=True)]
        tokens, room = zip(*live, strict=True)
        upload = torch.tensor([tokens, room, at])
        if device.type == "cuda":
            upload = upload.pin_memory()
        upload = upload.to(device, non_blocking=True)
        for mine, theirs in zip((self._tokens, self._room, self._positions), upload, strict=True):
            mine.copy_(theirs)
        if self._stops.shape[1]:
            width = self._stops.shape[1]
            own = [list(row.request.sampling.stop_token_ids) if row else [] for row in rows]
            self._stops.copy_(torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in own]))
        self._runner.body.arrange(self._cache, positions)

    def run(self, number: int) -> None:
        """One step, the ``number``-th of its chunk."""
        if number == 0:
            self._at.zero_()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute()
        if self._eager_tail:
            assert self._logits is not None
            self._sample(self._logits)

    def _compute(self) -> None:
        cache, runner = self._cache, self._runner
        hidden = runner.body.step(self._tokens, self._positions, cache.capacity, cache)
        if self._eager_tail:
            self._logits = runner.logits(hidden)
        else:
            self._tail(hidden)

    def _finish(self, hidden: torch.Tensor) -> None:
        # Compiled, the logits of half precision are never there in float32.
        self._sample(self._runner.logits(hidden))

    def _sample(self, logits: torch.Tensor) -> None:
        chosen, logprobs = self.sampler.draw(logits)
        self.tokens_of.index_copy_(0, self._at, chosen[None])
        self.logprobs_of.index_copy_(0, self._at, logprobs[None])
        self._at.add_(1)
        self._room.sub_(1).clamp_(min=0)
        if self._stops.shape[1]:
            self._room.mul_((self._stops != chosen[:, None]).all(1))
        # A row that has ended stays at the first column of its slot.
        self._positions.add_(1).mul_(self._room > 0)
        self._tokens.copy_(chosen)

    def _captured(self, pool: Any, stream: Any) -> Any:
        """The step as a CUDA graph; None: the model's code cannot be captured."""
        runner = self._runner
        graph = torch.cuda.CUDAGraph()
        try:
            if not self._eager_tail:
                self._tail = runner.compiler.function(self._finish)
            with runner.compiler.layers():
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(2):
                        self._try()
                torch.cuda.current_stream().wait_stream(stream)
                # Other threads may allocate and wait for events meanwhile.
                mode = "thread_local"
                with torch.cuda.graph(graph, pool, stream, capture_error_mode=mode):
                    self._compute()
        except Exception as error:
            if lacks_memory(error):
                raise
            if runner.compiler.active:
                # The next try is without the compiler.
                runner.compiler.give_up(compiler_failure(error))
                return self._captured(pool, stream)
            self._tail, runner.captures = self._finish, False
            logger.warning(
                "decode steps of this model cannot be captured, and are launched one by one, which "
                "is slower: %s",
                compiler_failure(error),
            )
            return None
        return graph

    def _try(self) -> None:
        self._at.zero_()
        self._positions.fill_(self._cache.capacity - 1)
        self._compute()
