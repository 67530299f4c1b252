"""Lockstep over the worker processes of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError
from plugrl.core.text.rollout.attempts import RolloutContext
from plugrl.core.text.rollout.processes.handle import WorkerDied
from plugrl.core.text.rollout.processes.messages import Setup, pack_error, worker_setup
from plugrl.core.text.rollout.processes.pool import WorkerPool
from plugrl.core.text.rollout.processes.seats import Item, Seat, Seats
from plugrl.core.text.rollout.processes.stream import PooledStream
from plugrl.core.text.rollout.processes.utilisation import Utilisation
from plugrl.core.text.rollout.rounds import CompletionOrError, RolloutRequest, serve

if TYPE_CHECKING:
    from plugrl.core.factory import Factory
    from plugrl.core.run.run import Run
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.rollout.processes.executor import Executor
    from plugrl.core.text.rollout.stream import Spent
    from plugrl.core.text.rollout.worker import RolloutWorker
    from plugrl.core.text.trajectory import Trajectory


class PooledRollouts(Seats):
    """Attempts prompts in the processes of a pool, in rounds that do not depend on their number.

    Args:
        pool: the processes.
        count: how many of them are used.
        setup: what they build.
        worker: the worker as the driver has built it, for what it says about failures.
        services: the models.
        utilisation: adds up what processes on other machines do; None: nobody asks.
    """

    def __init__(
        self,
        pool: WorkerPool,
        count: int,
        setup: Setup,
        worker: RolloutWorker,
        services: Mapping[str, InferenceService],
        utilisation: Utilisation | None = None,
    ) -> None:
        super().__init__(pool, count, setup, worker)
        pool.grow(count)
        self._utilisation = utilisation
        self._services = services
        self._found: dict[int, list[Trajectory]] = {}

    def stream(self, spent: Spent | None = None) -> PooledStream:
        """The same processes for attempts in the background."""
        return PooledStream(
            self._pool,
            self._count,
            self._setup,
            self._worker,
            self._services,
            spent,
            self._utilisation,
        )

    def metrics(self) -> dict[str, float]:
        """What happened to the processes since the last call."""
        return {
            "rollout/worker_restarts": float(self._pool.take_restarts()),
            "rollout/worker_timeouts": float(self._pool.take_overdue()),
        }

    def collect(
        self, prompts: Sequence[Prompt], context: RolloutContext
    ) -> dict[int, list[Trajectory]]:
        """The trajectories of every prompt, by its place.

        Raises:
            PlugrlError: a component named a fault that must end the run.
            RunError: too many processes died.
        """
        self._context = context
        self._items = {number: Item(prompt, context) for number, prompt in enumerate(prompts)}
        self._found = {}
        seats = [
            Seat(i, self._pool.handle(i), set(range(i, len(prompts), self._count)))
            for i in range(self._count)
        ]
        if self._utilisation is not None:
            self._utilisation.begin()
        try:
            for seat in seats:
                self.give_work(seat)
            while any(seat.open for seat in seats):
                busy = [seat for seat in seats if seat.open and seat.asked is None]
                if busy:
                    self._receive(busy)
                else:
                    self._serve([seat for seat in seats if seat.open])
        except BaseException:
            self._pool.discard([seat.index for seat in seats if seat.open])
            raise
        if self._utilisation is not None:
            self._utilisation.end()
        return self._found

    def assign(self, seat: Seat) -> None:
        """Send all attempts of a seat at once; they advance together."""
        sent = [(number, self.pack_problem(number)) for number in sorted(seat.open)]
        seat.handle.send("collect", self._context, sent)
        self._works(seat)

    def _works(self, seat: Seat) -> None:
        if self._utilisation is not None:
            self._utilisation.works(seat.index)

    def _receive(self, busy: Sequence[Seat]) -> None:
        by_connection = {seat.handle.connection: seat for seat in busy}
        for connection in wait(list(by_connection)):
            seat = by_connection[connection]  # type: ignore[index]
            self.receive(seat)
            if self._utilisation is not None and (seat.asked is not None or not seat.open):
                self._utilisation.waits(seat.index, self._context.step)

    def found(self, number: int, trajectories: list[Trajectory]) -> None:
        """Keep what an attempt came to."""
        self._found[number] = trajectories
        if self._utilisation is not None:
            tokens = sum(len(trajectory.tokens) for trajectory in trajectories)
            self._utilisation.add_tokens(number % self._count, tokens)

    def handle_requests(self, seat: Seat, asked: list[tuple[int, RolloutRequest]]) -> None:
        """Keep the requests until all processes wait, unless all were answered before a death."""
        recalled = [self._items[entry.rollout].recall(entry) for _, entry in asked]
        if asked and None not in recalled:
            self._answer(seat, asked, [outcome for outcome in recalled if outcome is not None])
        else:
            seat.asked = asked or None

    def _serve(self, seats: Sequence[Seat]) -> None:
        """Answer a round: every open attempt of every process waits."""
        every = [entry for seat in seats for _, entry in seat.asked or ()]
        began = self._utilisation.now() if self._utilisation is not None else 0.0
        outcomes = iter(serve(self._services, every))
        if self._utilisation is not None:
            self._utilisation.served(began, [seat.index for seat in seats])
        for seat in seats:
            asked = seat.asked or []
            mine = [next(outcomes) for _ in asked]
            for (_, entry), outcome in zip(asked, mine, strict=True):
                if isinstance(outcome, PlugrlError):
                    raise outcome
                self._items[entry.rollout].remember(entry, outcome)
            self._answer(seat, asked, mine)

    def _answer(
        self,
        seat: Seat,
        asked: list[tuple[int, RolloutRequest]],
        outcomes: Sequence[CompletionOrError],
    ) -> None:
        seat.asked = None
        answers = [
            (key, pack_error(outcome) if isinstance(outcome, Exception) else outcome)
            for (key, _), outcome in zip(asked, outcomes, strict=True)
        ]
        self._works(seat)
        try:
            seat.handle.send("answers", answers)
        except WorkerDied:
            self.died(seat)


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
        PlugrlError: the executor cannot place the processes.
    """
    count, chosen = section.get("processes", 0), section.get("executor")
    if not count and chosen is None:
        return None
    executor: Executor | None = None
    if chosen is not None:
        executor = factory.build("executor", chosen, "rollout_worker.executor")
        count = executor.workers
    monitor = run.guards.policy
    restarts, health = monitor.max_worker_restarts, monitor.health_check
    level = logging.getLogger("plugrl").getEffectiveLevel()
    setup = worker_setup(
        factory, section, services, answer_key=answer_key, prompt_key=prompt_key, level=level
    )
    if executor is not None:
        executor.prepare(setup)
    # Phases of a run that want the same places share them.
    name = "worker_processes" if executor is None else f"worker_processes of {chosen}"
    pool = run.keep(name, lambda: WorkerPool(restarts, health, executor))
    utilisation = None
    if executor is not None:
        utilisation = Utilisation(run.timeline, pool.places)
        run.places.add("workers", utilisation.rows)
    return PooledRollouts(pool, count, setup, worker, services, utilisation)
