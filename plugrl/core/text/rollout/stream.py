"""Attempts in the background: they begin and end while the trainer does something else."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.inference import completions
from plugrl.core.text.rollout.rounds import Round
from plugrl.core.text.rollout.time_limits import PATIENCE, end_all, leave_behind

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.requests import Completion, GenerationRequest
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.rollout.attempts import Attempts, RolloutContext
    from plugrl.core.text.trajectory import Trajectory

#: Seconds that closing waits for code that blocks the event loop, before it leaves it behind.
CLOSING = 5.0

#: A result: the attempt by its number, and its trajectories.
Result = tuple[int, "list[Trajectory]"]
#: Told of attempts that began together: how many, and how many seconds all of them took.
Spent = Callable[[int, float], None]


class AttemptStream(ABC):
    """Runs attempts in an event loop of a thread of its own.

    All methods are for one thread, the trainer's. Attempts have numbers, none of which comes
    twice. A fault that must end the run is raised by the next call.

    Args:
        spent: told when all attempts of one :meth:`start` have ended.
    """

    def __init__(self, spent: Spent | None = None) -> None:
        self._spent = spent
        self._changed = threading.Condition()
        self._open: dict[int, _StartedAttempts] = {}
        self._results: list[Result] = []
        self._wanted = 1
        self._awaited: set[int] = set()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- what subclasses give ---------------------------------------------------------------

    @abstractmethod
    def begin(self, prompts: Mapping[int, Prompt], context: RolloutContext) -> None:
        """In the loop: begin attempts, and call :meth:`give` with what each came to."""

    @abstractmethod
    async def stop(self, numbers: Collection[int]) -> None:
        """In the loop: end attempts whose trajectories nobody wants; within a bounded time."""

    def leave(self) -> None:
        """In the loop: let go of what others use while no attempt is open."""
        return

    # -- what the trainer calls ---------------------------------------------------------------

    @property
    def open(self) -> int:
        """Attempts that have begun and not ended."""
        return len(self._open)

    def start(self, prompts: Mapping[int, Prompt], context: RolloutContext) -> None:
        """Begin attempts; it does not wait for them."""
        self._check()
        together = _StartedAttempts(time.perf_counter(), len(prompts), len(prompts))
        with self._changed:
            self._open.update(dict.fromkeys(prompts, together))
        self._call(self.begin, dict(prompts), context)

    def wait(self, count: int, numbers: Collection[int] = ()) -> None:
        """Return once ``count`` results are there, or no attempt is open.

        Args:
            count: results that were not given yet.
            numbers: these attempts have ended besides.

        Raises:
            PlugrlError: a worker, service or evaluator named a fault that must end the run.
        """
        with self._changed:
            self._wanted = max(1, count)
            self._awaited = set(numbers).intersection(self._open)
            while self._error is None and self._open and not self._has_enough:
                self._changed.wait()
        self._check()

    @property
    def _has_enough(self) -> bool:
        return len(self._results) >= self._wanted and not self._awaited

    def results(self) -> list[Result]:
        """What ended since the last call, in the order of the ends."""
        self._check()
        with self._changed:
            results, self._results = self._results, []
        return results

    def cancel(self, numbers: Collection[int]) -> list[int]:
        """End those attempts that are open, and give their numbers; they have no result.

        Code that swallows its cancellation is left behind.
        """
        self._check()
        with self._changed:
            gone = [number for number in numbers if self._discard_open(number)]
        if gone and self._loop is not None:
            ended = asyncio.run_coroutine_threadsafe(self.stop(gone), self._loop)
            # A plain worker function that computes blocks the loop; nobody waits for it.
            try:
                ended.result(2 * PATIENCE)
            except (TimeoutError, FutureCancelledError):
                ended.cancel()
        return gone

    def yield_workers(self) -> None:
        """Let go of worker processes while no attempt is open, so that others use them."""
        if self._loop is not None and not self._open:
            done = threading.Event()
            self._call(self.leave)
            self._call(done.set)
            done.wait(CLOSING)
            self._check()

    def close(self) -> None:
        """End all attempts; within a bounded time, whatever their code does."""
        with self._changed:
            self._closed = True
            self._open.clear()
            self._results.clear()
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        # A loop that has ended by itself is closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSING)
        self._thread = self._loop = None

    # -- the loop -----------------------------------------------------------------------------

    def give(self, number: int, trajectories: list[Trajectory]) -> None:
        """From the loop: an attempt has ended."""
        with self._changed:
            if not self._discard_open(number):
                return
            self._results.append((number, trajectories))
            self._awaited.discard(number)
            if self._has_enough or not self._open:
                self._changed.notify_all()

    def _discard_open(self, number: int) -> bool:
        """Take an attempt from those that are open; whether it was one."""
        together = self._open.pop(number, None)
        if together is None:
            return False
        together.left -= 1
        if not together.left and self._spent is not None:
            self._spent(together.count, time.perf_counter() - together.started)
        return True

    def fail(self, error: BaseException) -> None:
        """From the loop: the run must end."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def _check(self) -> None:
        error = self._error
        if error is None:
            return
        if isinstance(error, PlugrlError):
            raise error
        raise RunError(f"the background rollouts failed: {one_line(error)}") from error

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name="plugrl-rollouts", daemon=True)
            self._thread.start()

        def guarded() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.fail(error)

        self._loop.call_soon_threadsafe(guarded)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        except SystemExit as error:
            self.fail(RunError(f"a task that a worker started called exit ({error})"))
        except BaseException as error:
            self.fail(error)
        finally:
            if not self._closed:
                self.fail(RunError("the thread of the background rollouts has ended"))
            try:
                end_all(loop)
                self.leave()
            finally:
                asyncio.set_event_loop(None)
                loop.close()


class _StartedAttempts:
    """Attempts that began together."""

    __slots__ = ("count", "left", "started")

    def __init__(self, started: float, count: int, left: int) -> None:
        self.started, self.count, self.left = started, count, left


class Unpaced(Round):
    """Each request is sent when it is made, whatever the other rollouts do.

    What evaluators do for several at once is done for those that wait at the same moment.
    """

    def __init__(self, services: Mapping[str, InferenceService]) -> None:
        super().__init__(tuple(services), lambda _: None)
        self._services = services

    async def ask(self, rollout: int, model: str, request: GenerationRequest) -> Completion:
        """The answer to one request.

        Raises:
            RunError: there is no such model.
            EngineError: the model failed to answer this request.
        """
        self.check_model(model)
        return await completions.complete_request(model, self._services[model], request)


class LocalStream(AttemptStream):
    """Attempts in this process.

    Args:
        attempts: makes them.
        services: the models.
        spent: see :class:`AttemptStream`.
    """

    def __init__(
        self,
        attempts: Attempts,
        services: Mapping[str, InferenceService],
        spent: Spent | None = None,
    ) -> None:
        super().__init__(spent)
        self._attempts = attempts
        self._round = Unpaced(services)
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, prompts: Mapping[int, Prompt], context: RolloutContext) -> None:
        """Each attempt is a task."""
        for number, prompt in prompts.items():
            task = asyncio.ensure_future(self._attempt(number, prompt, context))
            self._tasks[number] = task

    async def _attempt(self, number: int, prompt: Prompt, context: RolloutContext) -> None:
        try:
            self.give(number, await self._attempts.attempt(self._round, number, prompt, context))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.fail(error)
        finally:
            self._tasks.pop(number, None)

    async def stop(self, numbers: Collection[int]) -> None:
        """Cancel the tasks."""
        tasks = {self._tasks[number] for number in numbers if number in self._tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            _, going = await asyncio.wait(tasks, timeout=PATIENCE)
            for task in going:
                leave_behind(task)
