"""Attempts in the background in the worker processes of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from plugrl.core.errors import PlugrlError
from plugrl.core.text.inference import completions
from plugrl.core.text.rollout.processes.handle import WorkerDied, WorkerHandle
from plugrl.core.text.rollout.processes.messages import pack_error
from plugrl.core.text.rollout.processes.seats import Item, Seat, Seats
from plugrl.core.text.rollout.processes.utilisation import BUSY, FOR_MODELS, FOR_OTHERS
from plugrl.core.text.rollout.stream import AttemptStream, Spent

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.requests import Completion
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.rollout.attempts import RolloutContext
    from plugrl.core.text.rollout.processes.messages import Setup
    from plugrl.core.text.rollout.processes.pool import WorkerPool
    from plugrl.core.text.rollout.processes.utilisation import Utilisation
    from plugrl.core.text.rollout.rounds import RolloutRequest
    from plugrl.core.text.rollout.worker import RolloutWorker
    from plugrl.core.text.trajectory import Trajectory


class PooledStream(AttemptStream, Seats):
    """Requests of the processes are forwarded to the services one by one, as they come.

    Attempts of a process that dies begin anew in the one that takes its place.

    Args:
        pool, count, setup, worker: see :class:`Seats`.
        services: the models.
        spent: see :class:`AttemptStream`.
        utilisation: adds up what processes on other machines do; None: nobody asks.
    """

    def __init__(
        self,
        pool: WorkerPool,
        count: int,
        setup: Setup,
        worker: RolloutWorker,
        services: Mapping[str, InferenceService],
        spent: Spent | None = None,
        utilisation: Utilisation | None = None,
    ) -> None:
        AttemptStream.__init__(self, spent)
        Seats.__init__(self, pool, count, setup, worker)
        self._services = services
        self._seats: list[Seat] = []
        self._asking: dict[int, set[asyncio.Task[None]]] = {}
        self._utilisation = utilisation
        #: Whose message is read.
        self._speaking = 0

    # -- attempts -----------------------------------------------------------------------------

    def begin(self, prompts: Mapping[int, Prompt], context: RolloutContext) -> None:
        """Each attempt goes to the process that has the fewest."""
        if not self._seats:
            self._seats = [Seat(i, self._pool.handle(i)) for i in range(self._count)]
            for seat in self._seats:
                self._attach(seat)
        new: dict[int, list[int]] = {}
        for number, prompt in prompts.items():
            seat = min(self._seats, key=lambda each: len(each.open))
            seat.open.add(number)
            self._items[number] = Item(prompt, context)
            new.setdefault(seat.index, []).append(number)
        for index, numbers in new.items():
            seat = self._seats[index]
            try:
                seat.handle.prepare(self._setup)
                self._send(seat, numbers)
            except WorkerDied:
                self.died(seat)
        self._note(*self._seats)

    def assign(self, seat: Seat) -> None:
        """Send a process that took over all attempts of its seat."""
        self._send(seat, sorted(seat.open))

    def _send(self, seat: Seat, numbers: list[int]) -> None:
        by_context: dict[RolloutContext, list[tuple[int, bytes]]] = {}
        for number in numbers:
            sent = (number, self.pack_problem(number))
            by_context.setdefault(self._items[number].context, []).append(sent)
        for context, some in by_context.items():
            seat.handle.send("begin", context, some)

    def found(self, number: int, trajectories: list[Trajectory]) -> None:
        """Give what an attempt came to."""
        self._items.pop(number, None)
        self._asking.pop(number, None)
        if self._utilisation is not None:
            tokens = sum(len(trajectory.tokens) for trajectory in trajectories)
            self._utilisation.add_tokens(self._speaking, tokens)
        self.give(number, trajectories)

    async def stop(self, numbers: Collection[int]) -> None:
        """Send the cancellation to the processes without waiting: no result is read any more."""
        for number in numbers:
            self._items.pop(number, None)
            for task in self._asking.pop(number, ()):
                task.cancel()
        for seat in self._seats:
            gone = sorted(seat.open.intersection(numbers))
            seat.open.difference_update(gone)
            if gone:
                try:
                    seat.handle.send("cancel", gone)
                except WorkerDied:
                    self.died(seat)
        self._note(*self._seats)

    # -- requests -----------------------------------------------------------------------------

    def handle_requests(self, seat: Seat, asked: list[tuple[int, RolloutRequest]]) -> None:
        """Send the requests to the services."""
        for key, entry in asked:
            task = asyncio.ensure_future(self._ask(seat, seat.handle, key, entry))
            own = self._asking.setdefault(entry.rollout, set())
            own.add(task)
            task.add_done_callback(own.discard)

    async def _ask(self, seat: Seat, handle: WorkerHandle, key: int, entry: RolloutRequest) -> None:
        answer: Completion | bytes
        try:
            service = self._services[entry.model]
            answer = await completions.complete_request(entry.model, service, entry.request)
        except PlugrlError as error:
            self.fail(error)
            return
        except Exception as error:
            answer = pack_error(error)
        if handle is seat.handle:
            self._asking.get(entry.rollout, set()).discard(asyncio.current_task())
            self._note(seat)
            try:
                handle.send("answers", [(key, answer)])
            except WorkerDied:
                # Its connection says so too, and there it is handled.
                return

    # -- processes ----------------------------------------------------------------------------

    def attach_process(self, seat: Seat) -> None:
        """Listen to the new process."""
        self._attach(seat)

    def _attach(self, seat: Seat) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(seat.handle.connection.fileno(), self._readable, seat)

    def _readable(self, seat: Seat) -> None:
        self._speaking = seat.index
        try:
            self.receive(seat)
            self._note(seat)
        except BaseException as error:
            self.fail(error)
            self.leave()

    def release_process(self, seat: Seat, old: WorkerHandle) -> None:
        """Listen no longer to a process that has ended, and end what its attempts asked."""
        self._detach(old)
        for number in seat.open:
            for task in self._asking.pop(number, ()):
                task.cancel()

    def _note(self, *seats: Seat) -> None:
        """Tell what processes do: one is busy as long as an attempt of it waits for no model."""
        if self._utilisation is None:
            return
        for seat in seats:
            waits = all(self._asking.get(number) for number in seat.open)
            state = (FOR_MODELS if waits else BUSY) if seat.open else FOR_OTHERS
            self._utilisation.becomes(seat.index, state)

    def _detach(self, handle: WorkerHandle) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed() and not handle.connection.closed:
            loop.remove_reader(handle.connection.fileno())

    def leave(self) -> None:
        """Stop listening, and end processes that still run cancelled attempts."""
        seats, self._seats = self._seats, []
        for seat in seats:
            self._detach(seat.handle)
            if self._utilisation is not None:
                self._utilisation.becomes(seat.index, None)
        self._pool.discard([seat.index for seat in seats if seat.open])
