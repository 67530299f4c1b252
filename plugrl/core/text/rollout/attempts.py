"""Attempts: a worker runs over problems, and each ends with trajectories or a counted failure."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError
from plugrl.core.plugins.user_code.copies import own_copy
from plugrl.core.plugins.user_code.error_location import failure_key, warn_once
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, ending
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.rollout.failures import (
    add_location,
    describe_exception,
    failed_trajectory,
    overrun,
)
from plugrl.core.text.rollout.fibers import Fibers, Overrun
from plugrl.core.text.rollout.task import CURRENT, RolloutTask
from plugrl.core.text.rollout.time_limits import PATIENCE, PLAIN, Clock, Marked
from plugrl.core.text.rollout.validate_rollout import check_request, validate_trajectories
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.tokenizer import Tokenizer
    from plugrl.core.text.rollout.rounds import Round
    from plugrl.core.text.rollout.task import BatchWork, Judgement


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """What the attempts of one call have in common."""

    seed: int
    step: int
    sampling: SamplingParams
    is_val: bool

    def coordinates(self, prompt: Prompt) -> tuple[int, int, int, int]:
        """(seed, step, item, run): validation draws from streams of its own."""
        phase = -self.step - 1 if self.is_val else self.step
        return self.seed, phase, prompt.turn, prompt.run_id


class Attempts:
    """Runs a worker over prompts in this process.

    Args:
        worker: turns a task into trajectories.
        tokenizers: by model name.
        limits: by model name.
        timeout: seconds that one attempt may take; None: any number.
        mark: told which attempt's code runs, by its place among the prompts, and -1 when none
            does. Whoever gives it watches over code that never comes back.
    """

    def __init__(
        self,
        worker: RolloutWorker,
        tokenizers: Mapping[str, Tokenizer],
        limits: Mapping[str, TokenLimits],
        *,
        timeout: float | None = None,
        mark: Callable[[int], None] | None = None,
    ) -> None:
        self._worker = worker
        self._tokenizers = tokenizers
        self._limits = limits
        self._timeout = timeout
        self._mark = mark
        self._fibers = Fibers()
        self._clocks: set[Clock] = set()

    async def run(
        self,
        round_: Round,
        prompts: Mapping[int, Prompt],
        context: RolloutContext,
        done: Callable[[int, list[Trajectory]], None],
    ) -> None:
        """Attempt every prompt once; ``done`` gets the trajectories of each.

        Raises:
            PlugrlError: a worker, service or evaluator named a fault that must end the run. Any
                other failure of one attempt gives an invalid trajectory.
        """

        async def finish(number: int, prompt: Prompt) -> None:
            try:
                done(number, await self.attempt(round_, number, prompt, context))
            finally:
                round_.rollout_ended(number)

        for number in prompts:
            round_.rollout_started(number)
        running = [asyncio.create_task(finish(*entry)) for entry in prompts.items()]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    async def attempt(
        self, round_: Round, number: int, prompt: Prompt, context: RolloutContext
    ) -> list[Trajectory]:
        """Run one attempt as a task, and return its trajectories.

        Raises:
            PlugrlError: as :meth:`run`.
        """
        clock = Clock(self._timeout)
        task = self._task(round_, number, prompt, context, clock)
        CURRENT.set(task)
        if self._bounds_plain:
            self._clocks.add(clock)
            PLAIN.set(lambda function: self._run_in_thread(clock, function))
        try:
            result = await self._result(task, clock, number)
            trajectories = validate_trajectories(self._worker, result, self._limits)
            if task.logged and trajectories:
                # Once an attempt, whatever number of trajectories it has.
                trajectories[-1].metrics.update(task.logged)
            return trajectories
        except PlugrlError as error:
            if error in task.engine_faults:
                raise
            raise add_location(error, self._worker, prompt) from error
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            # Ctrl-C cancels first. An interrupt without that is one that the worker has raised.
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            return [self._failure(prompt, context, error)]
        except BaseException as error:
            # Whatever class it has: code of a worker may raise anything.
            reason = None
            if clock.expired or isinstance(error, Overrun):
                # In a task of the code, it is not what the attempt itself ended with.
                code = clock.overran.code if clock.overran is not None else ""
                abandoned = clock.abandoned
                reason = overrun(self._worker, self._timeout, abandoned=abandoned, code=code)
            return [self._failure(prompt, context, error, reason)]
        finally:
            self._clocks.discard(clock)

    async def _result(self, task: RolloutTask, clock: Clock, number: int) -> object:
        def marked(awaited: Awaitable[Any]) -> Awaitable[Any]:
            if self._mark is None:
                return awaited
            # Code that was left behind says nothing of the attempts of now.
            mark = self._mark
            return Marked(awaited, lambda n: None if clock.abandoned else mark(n), number)

        if self._is_asynchronous:
            attempt: Any = self._worker.rollout(task)
            return await clock.bound(marked(attempt))
        plain = marked(self._plain(task, clock))
        # It may wait, for an evaluator that never ends.
        result: Any = await (clock.bound(plain) if self._bounds_plain else plain)
        return await clock.bound(marked(result)) if inspect.isawaitable(result) else result

    @cached_property
    def _is_asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self._worker.rollout)

    @property
    def _bounds_plain(self) -> bool:
        # A time limit of a marked attempt is held by whoever marks it.
        return self._timeout is not None and self._mark is None

    async def _run_in_thread(self, clock: Clock, function: Callable[[], Any]) -> Any:
        """Call plain code, which cannot be cancelled, in a thread that can be left behind."""
        context = contextvars.copy_context()
        # What cleans up after the end has a moment for it, as all async code.
        seconds = PATIENCE if clock.expired else clock.left
        try:
            return await self._fibers.run(
                lambda: context.run(function), seconds, partial(self._excuse, clock)
            )
        except Overrun as error:
            clock.overran = clock.overran or error
            raise

    def _excuse(self, clock: Clock, held: float) -> None:
        """Give other attempts back the time in which this one held the event loop."""
        for other in self._clocks - {clock}:
            other.excuse(held)

    async def _plain(self, task: RolloutTask, clock: Clock) -> object:
        rollout = self._worker.rollout
        if not (self._worker.asks_now or self._bounds_plain):
            return rollout(task)
        seconds = self._timeout if self._bounds_plain else None
        context = contextvars.copy_context()
        return await self._fibers.run(
            lambda: context.run(rollout, task), seconds, partial(self._excuse, clock)
        )

    def _task(
        self, round_: Round, number: int, prompt: Prompt, context: RolloutContext, clock: Clock
    ) -> RolloutTask:
        async def ask(
            model: str, tokens: Sequence[int], sampling: SamplingParams | None = None
        ) -> Completion:
            params = task.sampling if sampling is None else sampling
            stream = (*seed, task.turns)
            task.turns += 1
            request = GenerationRequest(list(tokens), self._ending(model, params), stream)
            answer = await self._answer(round_, number, model, request, task, clock)
            return answer.at(params.temperature or 1.0)

        seed = context.coordinates(prompt)

        async def batch_judge(entry: Judgement, work: BatchWork) -> None:
            async def timed(entries: Sequence[Judgement]) -> None:
                with clock.resumed():
                    await work(entries)

            with clock.paused():
                await round_.run_jointly(number, entry, timed)

        def park(*, timed: bool = False) -> Callable[[], None]:
            stack = ExitStack()
            if not timed:
                stack.enter_context(clock.paused())
            round_.park(number)
            stack.callback(round_.unpark, number)
            return stack.close

        task = RolloutTask(
            # Its own, since the other attempts at the problem read the same item.
            data=self._source_fields(own_copy(prompt.data)),
            item=prompt.index,
            run_id=prompt.run_id,
            group_id=prompt.group_id,
            is_val=context.is_val,
            sampling=context.sampling,
            ask=ask,
            tokenizers=self._tokenizers,
            prompt_key=prompt.prompt_key,
            answer_key=prompt.answer_key,
            seed=seed,
            batch_judge=batch_judge,
            park=park,
            limits=self._limits,
        )
        return task

    def _source_fields(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        name = self._worker.config.get("task_name")
        return data if name is None else {"task_name": name, **data}

    async def _answer(
        self,
        round_: Round,
        number: int,
        model: str,
        request: GenerationRequest,
        task: RolloutTask,
        clock: Clock,
    ) -> Completion:
        if clock.expired:
            # Code that swallowed its cancellation waits here until it is left behind.
            await asyncio.get_running_loop().create_future()
        check_request(self._worker, model, request, self._limits)
        try:
            with clock.paused():
                return await round_.ask(number, model, request)
        except PlugrlError as error:
            # A fault of the engine, which all attempts of the round are told.
            task.engine_faults.append(error)
            raise

    def _ending(self, model: str, params: SamplingParams) -> SamplingParams:
        """``params`` that also end where the asked model's folder says."""
        tokenizer = self._tokenizers.get(model)
        return params if tokenizer is None else ending(params, tokenizer)

    def _failure(
        self,
        prompt: Prompt,
        context: RolloutContext,
        error: BaseException,
        reason: str | None = None,
    ) -> Trajectory:
        said = reason or describe_exception(self._worker, error)
        whose = "" if reason is not None and reason.startswith("evaluator ") else "worker "
        message = f"an attempt is invalid: {whose}{said}; the traceback is in log.txt"
        warn_once(self._worker, failure_key(self._worker, error), message, error)
        return failed_trajectory(self._worker, prompt, said, is_val=context.is_val)
