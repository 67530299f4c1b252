"""Worker processes with their shares of the attempts: what they say, and what if they die."""

from __future__ import annotations

import logging
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ContractError, PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.rollout.failures import failed_trajectory, overrun, place_of, worker_label
from plugrl.core.text.rollout.processes.handle import WorkerDied, WorkerHandle
from plugrl.core.text.rollout.processes.messages import unpack_error
from plugrl.core.text.rollout.rounds import CompletionOrError, RolloutRequest

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.rollout.attempts import RolloutContext
    from plugrl.core.text.rollout.processes.messages import Setup
    from plugrl.core.text.rollout.processes.pool import WorkerPool
    from plugrl.core.text.rollout.worker import RolloutWorker
    from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Item:
    """One attempt: its problem, its context, the answers that it got so far, and its deaths."""

    prompt: Prompt
    context: RolloutContext
    deaths: int = 0
    answers: dict[tuple[Any, ...], tuple[list[int], CompletionOrError]] = field(
        default_factory=dict
    )

    def recall(self, asked: RolloutRequest) -> CompletionOrError | None:
        """The answer that an attempt got which died later; so the next one goes the same way."""
        tokens, outcome = self.answers.get((asked.model, *asked.request.stream), ((), None))
        return outcome if tokens == asked.request.prompt_tokens else None

    def remember(self, asked: RolloutRequest, outcome: CompletionOrError) -> None:
        """Keep an answer for :meth:`recall`."""
        key = (asked.model, *asked.request.stream)
        self.answers[key] = (list(asked.request.prompt_tokens), outcome)


@dataclass(slots=True)
class Seat:
    """A process with its share of the attempts; ``asked`` is set while all of them wait."""

    index: int
    handle: WorkerHandle
    open: set[int] = field(default_factory=set)
    asked: list[tuple[int, RolloutRequest]] | None = None


class Seats(ABC):
    """Attempts in the processes of a pool.

    Args:
        pool: the processes.
        count: how many of them are used.
        setup: what they build.
        worker: the worker as the driver has built it, for what it says about failures.
    """

    def __init__(self, pool: WorkerPool, count: int, setup: Setup, worker: RolloutWorker) -> None:
        self._pool = pool
        self._count = count
        self._setup = setup
        self._worker = worker
        self._traces: set[str] = set()
        self._items: dict[int, Item] = {}

    @abstractmethod
    def found(self, number: int, trajectories: list[Trajectory]) -> None:
        """An attempt has ended."""

    @abstractmethod
    def handle_requests(self, seat: Seat, asked: list[tuple[int, RolloutRequest]]) -> None:
        """Attempts of a process wait for answers."""

    @abstractmethod
    def assign(self, seat: Seat) -> None:
        """Send a process that has none of them the attempts of ``seat``.

        Raises:
            WorkerDied: the process is gone.
        """

    def release_process(self, seat: Seat, old: WorkerHandle) -> None:
        """``seat`` is about to lose a process, which has ended."""
        return

    def attach_process(self, seat: Seat) -> None:
        """``seat`` has got another process."""
        return

    def give_work(self, seat: Seat) -> None:
        """Give the attempts of ``seat`` to its process."""
        seat.asked = None
        if not seat.open:
            return
        try:
            seat.handle.prepare(self._setup)
            self.assign(seat)
        except WorkerDied:
            self.died(seat)

    def pack_problem(self, number: int) -> bytes:
        """The problem of an attempt as bytes.

        Raises:
            RunError: it holds something that cannot be sent.
        """
        prompt = self._items[number].prompt
        try:
            return pickle.dumps(prompt)
        except Exception as error:
            raise RunError(
                f"problem {prompt.index} cannot be sent to a worker process: {one_line(error)}; "
                "give it plain values, or set rollout_worker.processes=0"
            ) from error

    def receive(self, seat: Seat) -> None:
        """Take the next message of a process.

        Raises:
            PlugrlError: a component named a fault that must end the run.
            RunError: too many processes died.
        """
        try:
            name, *arguments = seat.handle.receive()
        except WorkerDied:
            self.died(seat)
            return
        getattr(self, f"_on_{name}")(seat, *arguments)

    def _on_ready(self, seat: Seat) -> None:
        seat.handle.ready = True

    def _on_log(self, seat: Seat, name: str, level: int, text: str, trace: str) -> None:
        # A traceback comes with the first of equal failures; each process has a first one.
        if not trace or text not in self._traces:
            seat.handle.log(name, level, text, trace)
        if trace:
            self._traces.add(text)

    def _on_fatal(self, seat: Seat, data: bytes, trace: str) -> None:
        error = unpack_error(data)
        if not isinstance(error, PlugrlError):
            error = RunError(f"{seat.handle.name} failed: {one_line(error)}")
        elif seat.handle.place and type(error) in (RunError, ContractError):
            error = type(error)(f"{error} ({seat.handle.name}{self._when(seat)})")
        raise error from _Remote(trace)

    def _when(self, seat: Seat) -> str:
        """`` in step 3``: of the attempts of a process, the latest; "" when it has none."""
        steps = [self._items[number].context.step for number in seat.open]
        return f" in step {max(steps)}" if steps else ""

    def _on_hung(self, seat: Seat, number: int) -> None:
        if number in seat.open:
            self._invalid(seat, number, overrun(self._worker, self._setup.timeout))
        self._overdue(seat, number)

    def _on_round(
        self, seat: Seat, asked: list[tuple[int, RolloutRequest]], done: list[tuple[int, bytes]]
    ) -> None:
        for number, data in done:
            if number not in seat.open:
                continue
            try:
                trajectories: list[Trajectory] = pickle.loads(data)
            except Exception as error:
                reason = (
                    f"what {worker_label(self._worker)} returned cannot be read in the driver: "
                    f"{one_line(error)}{place_of(self._worker)}"
                )
                self._invalid(seat, number, reason)
                continue
            seat.open.discard(number)
            self.found(number, trajectories)
        # An attempt that was cancelled may have asked before it learned of it.
        self.handle_requests(seat, [entry for entry in asked if entry[1].rollout in seat.open])

    def _overdue(self, seat: Seat, number: int) -> None:
        """Replace a process that ended itself because the code of an attempt did not come back."""
        self.release_process(seat, seat.handle)
        seat.handle.end()
        limit, item = self._setup.timeout or 0, self._items.get(number)
        what = "cancelled code" if item is None else f"problem {item.prompt.index}"
        reason = (
            f"{seat.handle.name} was ended because {what} passed "
            f"rollout_worker.timeout={limit:g} seconds"
        )
        seat.handle = self._pool.replace_overdue(seat.index, reason)
        self.attach_process(seat)
        self.give_work(seat)

    def died(self, seat: Seat) -> None:
        """Replace a process and give its attempts back; one that kills twice is invalid."""
        old, culprit = seat.handle, seat.handle.running_attempt
        suspects = {culprit} if culprit in seat.open else set(seat.open)
        if not old.ready:
            suspects, what = set(), "built its worker"
        elif culprit in seat.open:
            item = self._items[culprit]
            what = f"attempted problem {item.prompt.index} in step {item.context.step}"
        else:
            count = len(seat.open)
            what = f"had {count} attempt{'s' * (count != 1)}{self._when(seat)}"
        self.release_process(seat, old)
        how = old.end()
        if old.blameless:
            suspects = set()
        seat.handle = self._pool.replace(seat.index, f"{old.name} {how} while it {what}")
        self.attach_process(seat)
        for number in sorted(suspects):
            self._items[number].deaths += 1
            if self._items[number].deaths > 1:
                reason = f"problem {self._items[number].prompt.index} ended a worker process twice"
                self._invalid(seat, number, f"{reason}; the second {how}")
        self.give_work(seat)

    def _invalid(self, seat: Seat, number: int, reason: str) -> None:
        prompt = self._items[number].prompt
        logger.warning("%s: problem %d is invalid: %s", seat.handle.name, prompt.index, reason)
        seat.open.discard(number)
        is_val = self._items[number].context.is_val
        self.found(number, [failed_trajectory(self._worker, prompt, reason, is_val=is_val)])


class _Remote(Exception):
    """The traceback of an error in another process, for the log."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"in a worker process\n{trace}")
