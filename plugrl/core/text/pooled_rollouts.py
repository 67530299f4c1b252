"""Lockstep over the worker processes of a run."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from plugrl.core.blame import one_line
from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.text.attempts import Occasion
from plugrl.core.text.failures import failed, named, overrun, place_of
from plugrl.core.text.lockstep import Asked, Outcome, serve
from plugrl.core.text.worker_handle import WorkerDied, WorkerHandle
from plugrl.core.text.worker_messages import Setup, pack_error, unpack_error, worker_setup
from plugrl.core.text.worker_pool import WorkerPool

if TYPE_CHECKING:
    from plugrl.core.factory import Factory
    from plugrl.core.run.run import Run
    from plugrl.core.text.data import Prompt
    from plugrl.core.text.services import InferenceService
    from plugrl.core.text.trajectory import Trajectory
    from plugrl.core.text.worker import RolloutWorker

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Item:
    """One attempt: its problem, the answers that it got so far, and its deaths."""

    prompt: Prompt
    deaths: int = 0
    answers: dict[tuple[Any, ...], tuple[list[int], Outcome]] = field(default_factory=dict)

    def recall(self, asked: Asked) -> Outcome | None:
        """The answer that an attempt got which died later; so the next one goes the same way."""
        tokens, outcome = self.answers.get((asked.model, *asked.request.stream), ((), None))
        return outcome if tokens == asked.request.prompt_tokens else None

    def remember(self, asked: Asked, outcome: Outcome) -> None:
        """Keep an answer for :meth:`recall`."""
        key = (asked.model, *asked.request.stream)
        self.answers[key] = (list(asked.request.prompt_tokens), outcome)


@dataclass(slots=True)
class _Seat:
    """A process with its share of the attempts; ``asked`` is set while all of them wait."""

    index: int
    handle: WorkerHandle
    open: set[int] = field(default_factory=set)
    asked: list[tuple[int, Asked]] | None = None


class PooledRollouts:
    """Attempts prompts in the processes of a pool, in rounds that do not depend on their number.

    Args:
        pool: the processes.
        count: how many of them are used.
        setup: what they build.
        worker: the worker as the driver has built it, for what it says about failures.
        services: the models.
    """

    def __init__(
        self,
        pool: WorkerPool,
        count: int,
        setup: Setup,
        worker: RolloutWorker,
        services: Mapping[str, InferenceService],
    ) -> None:
        pool.grow(count)
        self._pool = pool
        self._count = count
        self._setup = setup
        self._worker = worker
        self._services = services
        self._traces: set[str] = set()
        self._items: dict[int, _Item] = {}
        self._found: dict[int, list[Trajectory]] = {}

    def metrics(self) -> dict[str, float]:
        """What happened to the processes since the last call."""
        return {
            "rollout/worker_restarts": float(self._pool.take_restarts()),
            "rollout/worker_timeouts": float(self._pool.take_overdue()),
        }

    def collect(self, prompts: Sequence[Prompt], occasion: Occasion) -> dict[int, list[Trajectory]]:
        """The trajectories of every prompt, by its place.

        Raises:
            PlugrlError: a component named a fault that must end the run.
            RunError: too many processes died.
        """
        self._occasion = occasion
        self._items = {number: _Item(prompt) for number, prompt in enumerate(prompts)}
        self._found = {}
        seats = [
            _Seat(i, self._pool.handle(i), set(range(i, len(prompts), self._count)))
            for i in range(self._count)
        ]
        try:
            for seat in seats:
                self._start(seat)
            while any(seat.open for seat in seats):
                busy = [seat for seat in seats if seat.open and seat.asked is None]
                if busy:
                    self._receive(busy)
                else:
                    self._serve([seat for seat in seats if seat.open])
        except BaseException:
            self._pool.discard([seat.index for seat in seats if seat.open])
            raise
        return self._found

    def _start(self, seat: _Seat) -> None:
        seat.asked = None
        if not seat.open:
            return
        sent = [(number, self._packed(number)) for number in sorted(seat.open)]
        try:
            seat.handle.prepare(self._setup)
            seat.handle.send("collect", self._occasion, sent)
        except WorkerDied:
            self._died(seat)

    def _packed(self, number: int) -> bytes:
        prompt = self._items[number].prompt
        try:
            return pickle.dumps(prompt)
        except Exception as error:
            raise RunError(
                f"problem {prompt.index} cannot be sent to a worker process: {one_line(error)}; "
                "give it plain values, or set rollout_worker.processes=0"
            ) from error

    def _receive(self, busy: Sequence[_Seat]) -> None:
        by_connection = {seat.handle.connection: seat for seat in busy}
        for connection in wait(list(by_connection)):
            seat = by_connection[connection]  # type: ignore[index]
            try:
                name, *arguments = seat.handle.receive()
            except WorkerDied:
                self._died(seat)
                continue
            getattr(self, f"_on_{name}")(seat, *arguments)

    def _on_ready(self, seat: _Seat) -> None:
        seat.handle.ready = True

    def _on_log(self, seat: _Seat, name: str, level: int, text: str, trace: str) -> None:
        # A traceback comes with the first of equal failures; each process has a first one.
        if not trace or text not in self._traces:
            seat.handle.log(name, level, text, trace)
        if trace:
            self._traces.add(text)

    def _on_fatal(self, seat: _Seat, data: bytes, trace: str) -> None:
        error = unpack_error(data)
        if not isinstance(error, PlugrlError):
            error = RunError(f"{seat.handle.name} failed: {one_line(error)}")
        raise error from _Remote(trace)

    def _on_hung(self, seat: _Seat, number: int) -> None:
        if number in seat.open:
            self._invalid(seat, number, overrun(self._worker, self._setup.timeout))
        self._overdue(seat, number)

    def _on_round(
        self, seat: _Seat, asked: list[tuple[int, Asked]], done: list[tuple[int, bytes]]
    ) -> None:
        for number, data in done:
            try:
                self._found[number] = pickle.loads(data)
            except Exception as error:
                reason = (
                    f"what {named(self._worker)} returned cannot be read in the driver: "
                    f"{one_line(error)}{place_of(self._worker)}"
                )
                self._invalid(seat, number, reason)
            seat.open.discard(number)
        recalled = [self._items[entry.rollout].recall(entry) for _, entry in asked]
        if asked and None not in recalled:
            self._answer(seat, asked, [outcome for outcome in recalled if outcome is not None])
        else:
            seat.asked = asked or None

    def _serve(self, seats: Sequence[_Seat]) -> None:
        """Answer a round: every open attempt of every process waits."""
        every = [entry for seat in seats for _, entry in seat.asked or ()]
        outcomes = iter(serve(self._services, every))
        for seat in seats:
            asked = seat.asked or []
            mine = [next(outcomes) for _ in asked]
            for (_, entry), outcome in zip(asked, mine, strict=True):
                if isinstance(outcome, PlugrlError):
                    raise outcome
                self._items[entry.rollout].remember(entry, outcome)
            self._answer(seat, asked, mine)

    def _answer(
        self, seat: _Seat, asked: list[tuple[int, Asked]], outcomes: Sequence[Outcome]
    ) -> None:
        seat.asked = None
        answers = [
            (key, pack_error(outcome) if isinstance(outcome, Exception) else outcome)
            for (key, _), outcome in zip(asked, outcomes, strict=True)
        ]
        try:
            seat.handle.send("answers", answers)
        except WorkerDied:
            self._died(seat)

    def _overdue(self, seat: _Seat, number: int) -> None:
        """Replace a process that ended itself because the code of an attempt did not come back."""
        seat.handle.end()
        limit = self._setup.timeout or 0
        reason = (
            f"{seat.handle.name} was ended because problem {self._items[number].prompt.index} "
            f"passed rollout_worker.timeout={limit:g} seconds"
        )
        seat.handle = self._pool.replace_overdue(seat.index, reason)
        self._start(seat)

    def _died(self, seat: _Seat) -> None:
        """Replace a process and give its attempts back; one that kills twice is invalid."""
        old, culprit = seat.handle, seat.handle.marked
        suspects = {culprit} if culprit in seat.open else set(seat.open)
        if not old.ready:
            suspects, what = set(), "built its worker"
        elif culprit in seat.open:
            what = f"attempted problem {self._items[culprit].prompt.index}"
        else:
            what = f"had {len(seat.open)} attempts"
        how = old.end()
        seat.handle = self._pool.replace(seat.index, f"{old.name} {how} while it {what}")
        for number in sorted(suspects):
            self._items[number].deaths += 1
            if self._items[number].deaths > 1:
                reason = f"problem {self._items[number].prompt.index} ended a worker process twice"
                self._invalid(seat, number, f"{reason}; the second {how}")
        self._start(seat)

    def _invalid(self, seat: _Seat, number: int, reason: str) -> None:
        prompt = self._items[number].prompt
        logger.warning("%s: problem %d is invalid: %s", seat.handle.name, prompt.index, reason)
        seat.open.discard(number)
        self._found[number] = [failed(self._worker, prompt, reason, is_val=self._occasion.is_val)]


class _Remote(Exception):
    """The traceback of an error in another process, for the log."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"in a worker process\n{trace}")


def pooled_rollouts(
    run: Run,
    factory: Factory,
    section: Any,
    worker: RolloutWorker,
    services: Mapping[str, InferenceService],
    *,
    answer_key: str,
    prompt_key: str = "prompt",
) -> PooledRollouts | None:
    """What makes the attempts of a trainer in processes; None: the section asks for none.

    Args:
        run: keeps the processes until its end.
        factory: knows what the configuration picked.
        section: of the rollout worker.
        worker: as the driver has built it.
        services: the models.
        answer_key: column of the reference answers.
        prompt_key: column of the prompts.

    Raises:
        ConfigError: the tokenizer of a model cannot be sent.
    """
    count = section.get("processes", 0)
    if not count:
        return None
    restarts = run.guards.policy.max_worker_restarts
    pool = run.keep("worker_processes", lambda: WorkerPool(restarts))
    level = logging.getLogger("plugrl").getEffectiveLevel()
    setup = worker_setup(
        factory, section, services, answer_key=answer_key, prompt_key=prompt_key, level=level
    )
    return PooledRollouts(pool, count, setup, worker, services)
