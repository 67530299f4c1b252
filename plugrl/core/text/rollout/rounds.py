"""Rounds of requests: served once every open rollout waits for an answer or has ended.

Serving a whole round at once gives the engine large batches, and makes them independent of which
rollout happened to ask first: equal seeds give equal batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.text.inference import completions
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.rollout.fibers import Overrun

if TYPE_CHECKING:
    from plugrl.core.text.inference.services import InferenceService

#: What a request ended with: an answer, or what the engine raised.
CompletionOrError = Completion | Exception


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A request to one model by one rollout, which is named by its place among the prompts."""

    rollout: int
    model: str
    request: GenerationRequest


@dataclass(slots=True)
class Pending:
    """A request whose rollout waits."""

    asked: RolloutRequest
    answer: asyncio.Future[Completion]

    def settle(self, outcome: CompletionOrError) -> None:
        """Give the rollout its answer, or raise the error there."""
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


def serve(
    services: Mapping[str, InferenceService], asked: Sequence[RolloutRequest]
) -> list[CompletionOrError]:
    """Let the models answer one round; the outcomes are in the order of ``asked``.

    Each model gets its requests in the order of their streams, (item, run, turn), so that a
    round does not depend on who asked first.
    """
    outcomes: list[CompletionOrError | None] = [None] * len(asked)
    order = sorted(range(len(asked)), key=lambda i: (asked[i].model, asked[i].request.stream))
    for model in sorted({entry.model for entry in asked}):
        own = [i for i in order if asked[i].model == model]
        requests = [asked[i].request for i in own]
        service = services[model]
        try:
            answers: Sequence[CompletionOrError] = completions.complete_requests(
                model, service, requests
            )
        except PlugrlError as error:
            answers = [error] * len(own)
        except Exception as error:
            answers = [completions.engine_error(model, service, error)] * len(own)
        except SystemExit as error:
            answers = [RunError(f"model {model!r} called exit ({error})")] * len(own)
        for i, answer in zip(own, answers, strict=True):
            outcomes[i] = answer
    return [outcome for outcome in outcomes if outcome is not None]


def answer_round(services: Mapping[str, InferenceService], pending: Sequence[Pending]) -> None:
    """Let the models answer the pending requests of one round, and settle each."""
    outcomes = serve(services, [entry.asked for entry in pending])
    for entry, outcome in zip(pending, outcomes, strict=True):
        entry.settle(outcome)


@dataclass(slots=True)
class _Gathered:
    """Something that is done for several rollouts at once; one of them gets the whole list."""

    rollout: int
    entry: Any
    turn: asyncio.Future[list[Any]]


class Round:
    """Gathers the requests of the open rollouts of this process.

    Args:
        models: the names that can be asked.
        complete: called with the pending requests, perhaps none, once every open rollout waits
            or has ended; it settles them now or later.
    """

    def __init__(self, models: Sequence[str], complete: Callable[[list[Pending]], None]) -> None:
        self._models = models
        self._complete = complete
        self._open: set[int] = set()
        #: How many things each waiting rollout waits for: it may send several requests at once.
        self._waiting: dict[int, int] = {}
        self._pending: list[Pending] = []
        self._gathered: list[_Gathered] = []
        self._soon = False

    def rollout_started(self, rollout: int) -> None:
        """Count a rollout as open: no round is served until it waits or ends."""
        self._open.add(rollout)

    def rollout_ended(self, rollout: int) -> None:
        """Take a rollout off the open ones; the others are no longer held up by it."""
        self._open.discard(rollout)
        self._waiting.pop(rollout, None)
        self._serve_when_all_wait()

    def park(self, rollout: int) -> None:
        """Count a rollout as waiting, for an answer or anything else, so that rounds go on."""
        self._waiting[rollout] = self._waiting.get(rollout, 0) + 1
        self._serve_when_all_wait()

    def unpark(self, rollout: int) -> None:
        """Undo one :meth:`park` of a rollout."""
        left = self._waiting.get(rollout, 0) - 1
        if left > 0:
            self._waiting[rollout] = left
        else:
            self._waiting.pop(rollout, None)

    def check_model(self, model: str) -> None:
        """Refuse a request to a model that does not exist.

        Raises:
            RunError: there is no such model.
        """
        if model not in self._models:
            raise RunError(f"no model {model!r}; models are: {', '.join(sorted(self._models))}")

    async def ask(self, rollout: int, model: str, request: GenerationRequest) -> Completion:
        """Wait for the answer to one request.

        Raises:
            RunError: there is no such model.
        """
        self.check_model(model)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(RolloutRequest(rollout, model, request), answer))
        self.park(rollout)
        try:
            return await answer
        finally:
            self.unpark(rollout)

    async def run_jointly(
        self, rollout: int, entry: Any, work: Callable[[Sequence[Any]], Awaitable[None]]
    ) -> None:
        """Do ``work`` once on ``entry`` and the entries of all other waiting rollouts.

        Once every open rollout waits, one of them does the work for all, such as judging a batch;
        the others return when it is done. This comes before models are asked.
        """
        own = _Gathered(rollout, entry, asyncio.get_running_loop().create_future())
        self._gathered.append(own)
        self.park(rollout)
        try:
            gathered = await own.turn
        except asyncio.CancelledError:
            # It was chosen to work for all and ended before it began.
            if not own.turn.cancelled():
                self._regather(own, own.turn.result())
            raise
        finally:
            self.unpark(rollout)
        if not gathered:
            return
        try:
            await work([each.entry for each in gathered])
        except (asyncio.CancelledError, Overrun):
            self._regather(own, gathered)
            raise
        except BaseException:
            self._release(gathered)
            raise
        self._release(gathered)

    def _regather(self, own: _Gathered, gathered: Sequence[_Gathered]) -> None:
        """Queue the other entries again when the rollout that worked for them ended too soon."""
        for each in gathered:
            if each is not own and not each.turn.done():
                self._gathered.append(each)
        self._serve_when_all_wait()

    def _release(self, gathered: Sequence[_Gathered]) -> None:
        # An empty list means: done by another. They look at their own entries for the outcome.
        for each in gathered:
            if not each.turn.done():
                each.turn.set_result([])

    def _serve_when_all_wait(self) -> None:
        if self._waiting.keys() >= self._open and not self._soon:
            self._soon = True
            # Not yet: code of this turn of the event loop may send more requests for the round.
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._soon = False
        # A rollout may have begun or gone on since this was scheduled.
        if not self._waiting.keys() >= self._open:
            return
        gathered, self._gathered = [g for g in self._gathered if not g.turn.done()], []
        if gathered:
            # The lowest number works, so that the order of the entries depends on no timing.
            gathered.sort(key=lambda each: each.rollout)
            gathered[0].turn.set_result(gathered)
            return
        if self._open and not self._pending:
            return
        pending, self._pending = self._pending, []
        self._complete([entry for entry in pending if not entry.answer.done()])
