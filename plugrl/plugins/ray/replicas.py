"""The driver's end of the actors that hold engines: calls, deaths and replacements."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from plugrl.core.errors import ContractError, EngineLost, RunError
from plugrl.core.run.process.cluster import settings
from plugrl.core.text.endpoint.clients.callables import DaemonThreads
from plugrl.core.text.inference.services import AdapterWeights
from plugrl.core.text.rollout.processes.messages import unpack_error
from plugrl.plugins.distributed import wire
from plugrl.plugins.distributed.weight_link import TransferError
from plugrl.plugins.ray import cluster
from plugrl.plugins.ray.engine_actor import EngineActor, EngineSetup, EngineTraits, Outcome
from plugrl.plugins.ray.errors import failure, reason
from plugrl.plugins.ray.files import Files

logger = logging.getLogger(__name__)
_CPU = "CPU"
#: The number and the life of the replica that works on a call of Ray.
_Waiting = dict[Any, tuple[int, int]]
#: Requests that an actor has at once.
_MOST_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class Task:
    """What a replica does, for messages: ``answered 4 requests``, in which step."""

    text: str
    step: int | None = None


_LOOKED = Task("said where it computes")


class Use:
    """How long a replica had requests, and how many tokens it gave; several threads may tell it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = self._since = time.monotonic()
        self._open, self._busy, self._tokens = 0, 0.0, 0

    def begin(self) -> None:
        """A request begins."""
        with self._lock:
            if not self._open:
                self._since = time.monotonic()
            self._open += 1

    def end(self) -> None:
        """One has ended."""
        with self._lock:
            self._open -= 1
            if not self._open:
                self._busy += time.monotonic() - self._since

    def add_tokens(self, count: int) -> None:
        """Answers had so many tokens."""
        with self._lock:
            self._tokens += count

    def numbers(self) -> dict[str, float]:
        """Seconds since the start, those with requests and those without, and tokens."""
        with self._lock:
            now = time.monotonic()
            seconds = now - self._began
            busy = self._busy + (now - self._since if self._open else 0.0)
        return {
            "seconds": round(seconds, 3),
            "busy": round(busy, 3),
            "for_requests": round(seconds - busy, 3),
            "tokens": self._tokens,
        }


@dataclass(slots=True)
class _Seat:
    """A replica, which is the ``life``-th at its place."""

    actor: Any
    life: int
    place: dict[str, str]
    #: What stands for the place.
    placing: Any


class Replicas:
    """The actors of one model.

    Those that die, or do not answer in time, are replaced: the new one loads the model, gets the
    present weights, and is asked what the old one had not answered. It may be used from several
    threads.

    Args:
        model: its name.
        count: how many there are.
        resources: what each takes of its machine.
        setup: what each builds.
        files: what each needs and its machine may lack.
        timeout: seconds that a call may take.
        max_restarts: how many may be replaced.
    """

    def __init__(
        self,
        model: str,
        count: int,
        resources: Mapping[str, float],
        setup: EngineSetup,
        files: Files,
        *,
        timeout: float,
        max_restarts: int,
    ) -> None:
        self._model, self._count = model, count
        self._resources = {_CPU: 0.0, **resources}
        self._timeout, self._max_restarts = timeout, max_restarts
        self._ray = ray = cluster.connect()
        self._setup, self._files = ray.put(setup), ray.put(files)
        self._seats: list[_Seat] = []
        #: Those that load the model, with what stands for its end.
        self._loading: list[tuple[_Seat, Any]] = []
        #: What those at each place did.
        self.uses = [Use() for _ in range(count)]
        self._lock = threading.RLock()
        self._locks = [threading.Lock() for _ in range(count)]
        self._lives = 0
        #: Says how the present weights are given: a method of the actor, and arguments.
        self._given: Callable[[], tuple[str, tuple[Any, ...]]] | None = None
        #: The edition of the frozen weights in the object store, and what stands for them.
        self._frozen: tuple[object, Any] = None, None
        #: How many replicas were replaced.
        self.restarts = 0

    def __len__(self) -> int:
        return self._count

    @property
    def places(self) -> list[dict[str, str]]:
        """Where the replicas are; of one that starts, nothing."""
        return [
            seat.place and {"name": self._where(number, seat), **seat.place}
            for number, seat in enumerate(self._seats)
        ]

    def begin(self) -> None:
        """Start all, and wait until each has its place; they go on to load the model.

        What is started afterwards gets what they leave of a machine.

        Raises:
            RunError: one is not placed.
        """
        with self._lock:
            self._loading = [self._begin(number) for number in range(self._count)]
            with self._all_or_none():
                for number, (seat, _) in enumerate(self._loading):
                    with self._starting(number, seat):
                        self._place(seat)

    def start(self) -> EngineTraits:
        """Wait until all have loaded the model, and say what their engines are.

        Those that do not run are started.

        Raises:
            RunError: one does not start.
            PlugrlError: what the engine raises, such as a model that cannot be loaded.
        """
        with self._lock:
            if not self._loading:
                self.begin()
            traits = []
            with self._all_or_none():
                for number, (seat, loaded) in enumerate(self._loading):
                    with self._starting(number, seat):
                        traits.append(self._finish(seat, loaded))
            self._seats, self._loading = [seat for seat, _ in self._loading], []
            return traits[0]

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """End all that load the model, if one of them fails."""
        try:
            yield
        except BaseException:
            loading, self._loading = self._loading, []
            self._end([seat for seat, _ in loading])
            raise

    @contextlib.contextmanager
    def _starting(self, number: int, seat: _Seat) -> Iterator[None]:
        """Say in one line how a replica has failed to start."""
        try:
            yield
        except self._ray.exceptions.RayError as error:
            self._fail_start(number, seat, error)

    def close(self) -> None:
        """End all; a later call starts them anew."""
        with self._lock:
            seats = [*self._seats, *(seat for seat, _ in self._loading)]
            self._seats, self._loading = [], []
        self._end(seats)

    # ------------------------------------------------------------------------- calls

    def call(
        self, method: str, asked: Mapping[int, Sequence[Any]], tasks: Mapping[int, Task]
    ) -> dict[int, Any]:
        """What a method of several replicas gives, by their numbers.

        Args:
            method: its name.
            asked: the arguments of each.
            tasks: what each does.

        Raises:
            RunError: too many have died.
            Exception: what the first engine that failed has raised.
        """
        outcomes = self._outcomes(method, asked, tasks)
        return {n: self._answer(n, self._seat(n), outcomes[n], tasks[n]) for n in asked}

    def _outcomes(
        self, method: str, asked: Mapping[int, Sequence[Any]], tasks: Mapping[int, Task]
    ) -> dict[int, Outcome]:
        ray, outcomes = self._ray, dict[int, Outcome]()
        waiting: _Waiting = {}
        until = time.monotonic() + self._timeout
        for number, arguments in asked.items():
            self._send(waiting, number, method, arguments)
            self.uses[number].begin()
        while waiting:
            left = max(0.0, until - time.monotonic())
            done, late = ray.wait(list(waiting), num_returns=1, timeout=left)
            for ref in done or late:
                number, life = waiting.pop(ref)
                try:
                    outcomes[number] = _outcome(ray.get(ref, timeout=None if done else 0))
                    self.uses[number].end()
                except (ray.exceptions.RayError, EngineLost) as error:
                    self._replace(number, life, error, tasks[number])
                    until = time.monotonic() + self._timeout
                    self._send(waiting, number, method, asked[number])
        return outcomes

    async def complete(self, number: int, request: Any, task: Task) -> Any:
        """The answer of a replica to one request among others; cancelling the task cancels it.

        Raises:
            RunError: too many replicas have died.
            Exception: what the engine raises.
        """
        exceptions = self._ray.exceptions
        while True:
            seat = self._seat(number) or await _apart(self._started_seat, number)
            ref = seat.actor.complete.remote(request)
            error: BaseException
            try:
                answer = asyncio.wrap_future(ref.future())
                outcome = _outcome(await asyncio.wait_for(answer, self._timeout))
                return self._answer(number, seat, outcome, task)
            except asyncio.CancelledError:
                self._ray.cancel(ref)
                raise
            except TimeoutError:
                error = exceptions.GetTimeoutError()
            except (exceptions.RayError, EngineLost) as raised:
                error = raised
            await _apart(self._replace, number, seat.life, error, task)

    def give(self, version: int, method: str, *arguments: Any) -> None:
        """Give weights to all replicas, and to those that take over later.

        Args:
            version: of the weights.
            method: of the engine.
            arguments: its own; a mapping of tensors is put into the object store once.

        Raises:
            RunError: they do not fit there, or too many replicas have died.
            Exception: what the engine raises; then nothing counts as given.
        """
        shared = [
            self._put(wire.pack(dict(value)), version) if isinstance(value, Mapping) else value
            for value in arguments
        ]
        self._give_all(version, "give", (method, *shared))

    def give_adapter(self, weights: AdapterWeights, version: int) -> None:
        """Give an adapter to all replicas; a machine gets the frozen weights once.

        Raises:
            RunError: as :meth:`give`.
            Exception: what the engine raises; then nothing counts as given.
        """
        edition, frozen = self._frozen
        if edition is not weights.edition:
            frozen = self._put(wire.pack(dict(weights.frozen())), version)
            self._frozen = weights.edition, frozen
        given = (frozen, self._put(weights.products, version), weights.merge, version)
        self._give_all(version, "give_adapter", given)

    def _give_all(self, version: int, method: str, given: tuple[Any, ...]) -> None:
        everyone = range(self._count)
        task = Task(f"took the weights of version {version}")
        try:
            outcomes = self._outcomes(
                method, dict.fromkeys(everyone, given), dict.fromkeys(everyone, task)
            ).values()
        except BaseException:
            # Some may have them and others not: later calls find all with those of before.
            self.close()
            raise
        failed = [error for _, error in outcomes if error is not None]
        if failed and len(failed) < len(outcomes):
            self.close()
        for outcome in outcomes:
            _value(outcome)
        self._given = lambda: (method, given)

    def memories(self) -> list[str]:
        """Of each replica, what is equal for processes that can read its memory."""
        everyone = range(self._count)
        told = self.call("memory", dict.fromkeys(everyone, ()), dict.fromkeys(everyone, _LOOKED))
        return [told[number] for number in everyone]

    @property
    def lives(self) -> list[int]:
        """Changes when a replica is replaced."""
        return [seat.life for seat in self._seats]

    def take_sent(
        self,
        version: int,
        sent: Sequence[Any],
        stop: Callable[[], None],
        present: Callable[[], tuple[str, tuple[Any, ...]]],
    ) -> bool:
        """Have all replicas take weights that ranks send at the same time.

        Args:
            version: of the weights.
            sent: what the replicas have to know of it.
            stop: tells all who take part that one has failed.
            present: how replicas that take over later get these weights.

        Returns:
            Whether all have them; else those that died were replaced, and it has to be done again.

        Raises:
            RunError: too many replicas have died, or weights do not reach them.
            Exception: what the engine raises; then nothing counts as given.
        """
        task, waiting = Task(f"took the weights of version {version}"), _Waiting()
        for number in range(self._count):
            self._send(waiting, number, "receive", (number, version, *sent))
        lost: list[tuple[int, int, BaseException]] = []
        errors: list[Exception] = []
        until = time.monotonic() + self._timeout
        while waiting:
            left = max(0.0, until - time.monotonic())
            done, late = self._ray.wait(list(waiting), num_returns=1, timeout=left)
            for ref in done or late:
                number, life = waiting.pop(ref)
                try:
                    _value(self._ray.get(ref, timeout=None if done else 0))
                except self._ray.exceptions.RayError as error:
                    stop()
                    lost.append((number, life, error))
                except Exception as error:
                    stop()
                    errors.append(error)
        raised = [error for error in errors if not isinstance(error, TransferError)]
        if raised:
            self.close()
            raise raised[0]
        for each in lost:
            self._replace(*each, task)
        if errors and not lost:
            raise RunError(f"weights did not reach model {self._model!r}: {errors[0]}")
        if not lost:
            self._given = present
        return not lost

    def _put(self, value: Any, version: int) -> Any:
        """What stands for weights of a version that are in the object store."""
        try:
            return self._ray.put(value)
        except self._ray.exceptions.RayError as error:
            node = self._ray.util.get_node_ip_address()
            raise RunError(
                f"putting version {version} of the weights of model {self._model!r} into the "
                f"object store of node {node} {reason(error)}; free some of the disk that has "
                "/tmp/ray, or raise settings.cluster.object_store_memory"
            ) from error

    def _send(
        self,
        waiting: dict[Any, tuple[int, int]],
        number: int,
        method: str,
        arguments: Sequence[Any],
    ) -> None:
        seat = self._started_seat(number)
        waiting[getattr(seat.actor, method).remote(*arguments)] = (number, seat.life)

    def _seat(self, number: int) -> _Seat | None:
        seats = self._seats
        return seats[number] if seats else None

    def _started_seat(self, number: int) -> _Seat:
        with self._lock:
            if not self._seats:
                self.start()
            return self._seats[number]

    # --------------------------------------------------------------- lives and deaths

    def _begin(self, number: int) -> tuple[_Seat, Any]:
        """Start an actor, which loads the model, without waiting; gives what stands for its end.

        Where the cluster has shrunk, it is one that shares CPUs.
        """
        if not cluster.nodes():
            raise RunError(
                "the Ray cluster has no machine left; start it again, then resume the run"
            )
        needed = dict(self._resources)
        fault = cluster.unplaceable(needed, self._count)
        if fault is not None:
            logger.warning("%s shares CPUs with others: %s", self._name(number), fault)
            needed[_CPU] = 0.0
        options = cluster.actor_options(needed)
        made = self._ray.remote(max_restarts=0, max_concurrency=_MOST_AT_ONCE)(EngineActor)
        self._lives += 1
        actor = made.options(**options).remote(self._setup, self._files)
        seat = _Seat(actor, self._lives, {}, actor.place.remote())
        return seat, actor.load.remote()

    def _place(self, seat: _Seat) -> None:
        """Wait until an actor is on its machine."""
        seat.place = self._ray.get(seat.placing, timeout=settings().start_timeout)

    def _finish(self, seat: _Seat, loading: Any) -> EngineTraits:
        """Wait until an actor has loaded the model, and give it the present weights."""
        get = self._ray.get
        traits: EngineTraits = _value(get(loading, timeout=self._timeout))
        if self._given is not None:
            method, given = self._given()
            _value(get(getattr(seat.actor, method).remote(*given), timeout=self._timeout))
        return traits

    def _replace(self, number: int, life: int, error: BaseException, task: Task) -> None:
        """Have another actor take over, unless that was done.

        Raises:
            RunError: too many were replaced, or no other one starts.
        """
        with self._locks[number]:
            old = self._seat(number)
            if old is None:
                raise RunError(f"{self._name(number)} was closed before it answered")
            if old.life != life:
                return
            said = failure(
                error,
                actor=self._name(number),
                node=old.place.get("node", ""),
                task=task.text,
                step=task.step,
            )
            self._end([old])
            while True:
                self._count_restart(said, error)
                logger.warning("%s; another takes over", said)
                seat, loading = self._begin(number)
                try:
                    self._place(seat)
                    self._finish(seat, loading)
                except self._ray.exceptions.GetTimeoutError as late:
                    self._end([seat])
                    self._fail_start(number, seat, late)
                except (self._ray.exceptions.RayError, EngineLost) as again:
                    self._end([seat])
                    said, error = self._start_failure(number, seat, again), again
                else:
                    break
            with self._lock:
                if self._seats:
                    self._seats[number] = seat
                else:  # it was closed meanwhile
                    self._end([seat])

    def _count_restart(self, said: str, error: BaseException) -> None:
        with self._lock:
            if self.restarts >= self._max_restarts:
                raise RunError(
                    f"{said}; {self.restarts} replicas were replaced before, and "
                    f"models.{self._model}.inference.max_restarts={self._max_restarts} allows no "
                    "more"
                ) from error
            self.restarts += 1

    def _fail_start(self, number: int, seat: _Seat, error: BaseException) -> NoReturn:
        text = self._start_failure(number, seat, error)
        if not seat.place and isinstance(error, self._ray.exceptions.GetTimeoutError):
            has = cluster.unplaceable(self._resources, self._count)
            text += f": {has or 'others use what it needs, or its machine is slow'}"
        raise RunError(text) from error

    def _start_failure(self, number: int, seat: _Seat, error: BaseException) -> str:
        node = seat.place.get("node", "")
        task = "loaded the model" if node else "was placed"
        return failure(error, actor=self._name(number), node=node, task=task)

    def _end(self, seats: Sequence[_Seat]) -> None:
        for seat in seats:
            with contextlib.suppress(Exception):
                self._ray.kill(seat.actor)

    def _name(self, number: int) -> str:
        return f"replica {number + 1} of model {self._model!r}"

    def _where(self, number: int, seat: _Seat) -> str:
        return f"{self._name(number)} on node {seat.place['node']}"

    def _answer(self, number: int, seat: _Seat | None, outcome: Outcome, task: Task) -> Any:
        """What a replica answered; raises what its engine raised, and who broke its contract."""
        try:
            return _value(outcome)
        except ContractError as error:
            where = self._name(number) if seat is None else self._where(number, seat)
            when = "" if task.step is None else f" in step {task.step}"
            raise ContractError(f"{error} ({where}, while it {task.text}{when})") from error


def _value(outcome: Outcome) -> Any:
    """What an actor's call gave; raises what it raised."""
    value, error = outcome
    if error is not None:
        raise unpack_error(error)
    return value


def _outcome(outcome: Outcome) -> Outcome:
    """The same outcome; raises if it is that the engine is lost, as the actor might be."""
    error = None if outcome[1] is None else unpack_error(outcome[1])
    if isinstance(error, EngineLost):
        raise error
    return outcome


async def _apart(function: Any, *arguments: Any) -> Any:
    """Call a function that takes seconds, in a thread of its own."""
    return await asyncio.wrap_future(DaemonThreads(1).submit(function, *arguments))
