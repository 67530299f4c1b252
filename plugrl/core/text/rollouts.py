"""Lockstep rollouts: all open rollouts advance together, one round of requests at a time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plugrl.core.blame import failure_key, one_line, raised_at, warn_once
from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.text.completions import check_completions
from plugrl.core.text.sampling import SamplingParams
from plugrl.core.text.services import Completion, GenerationRequest
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.worker import RolloutTask, RolloutWorker

if TYPE_CHECKING:
    from plugrl.core.text.data import Prompt
    from plugrl.core.text.services import InferenceService


@dataclass(slots=True)
class _Pending:
    model: str
    request: GenerationRequest
    answer: asyncio.Future[Completion]


class _Round:
    """Serves requests once every open rollout waits for an answer or has ended."""

    def __init__(self, services: Mapping[str, InferenceService]) -> None:
        self._services = services
        self._open: set[int] = set()
        self._waiting: set[int] = set()
        self._pending: list[_Pending] = []

    def opened(self, rollout: int) -> None:
        self._open.add(rollout)

    def ended(self, rollout: int) -> None:
        self._open.discard(rollout)
        self._waiting.discard(rollout)
        self._serve_when_complete()

    async def ask(self, rollout: int, model: str, request: GenerationRequest) -> Completion:
        if model not in self._services:
            raise RunError(f"no model {model!r}; models are: {', '.join(sorted(self._services))}")
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(model, request, answer))
        self._waiting.add(rollout)
        self._serve_when_complete()
        try:
            return await answer
        finally:
            self._waiting.discard(rollout)

    def _serve_when_complete(self) -> None:
        if self._pending and self._waiting >= self._open:
            # Later, so that a rollout may send several requests at once.
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        if not self._pending or not self._waiting >= self._open:
            return
        pending, self._pending = self._pending, []
        pending.sort(key=lambda entry: (entry.model, entry.request.stream))
        for model in sorted({entry.model for entry in pending}):
            asked = [entry for entry in pending if entry.model == model and not entry.answer.done()]
            try:
                service, requests = self._services[model], [entry.request for entry in asked]
                answers = check_completions(
                    model, service.generate(requests), requests, service.vocabulary_size
                )
            except Exception as error:
                for entry in asked:
                    entry.answer.set_exception(error)
                continue
            for entry, completion in zip(asked, answers, strict=True):
                entry.answer.set_result(completion)


class LockstepRollouts:
    """Runs a worker over prompts so that equal seeds give equal trajectories.

    Args:
        worker: turns a task into trajectories.
        services: inference services by model name.
        seed: the run's seed.
    """

    def __init__(
        self, worker: RolloutWorker, services: Mapping[str, InferenceService], seed: int
    ) -> None:
        self._worker = worker
        self._services = services
        self._seed = seed
        self._tokenizers = {name: service.tokenizer for name, service in services.items()}

    def collect(
        self,
        prompts: Sequence[Prompt],
        step: int,
        sampling: SamplingParams,
        *,
        is_val: bool = False,
    ) -> list[Trajectory]:
        """Attempt every prompt; trajectories come in the order of the prompts.

        Raises:
            PlugrlError: a worker, service or evaluator named a fault that must end the run. Any
                other failure of one attempt gives an invalid trajectory.
        """
        round_ = _Round(self._services)
        tasks = [
            self._task(round_, number, prompt, step, sampling, is_val)
            for number, prompt in enumerate(prompts)
        ]
        results = [self._start(task) for task in tasks]
        if any(inspect.isawaitable(result) for result in results):
            results = list(asyncio.run(_finish_all(round_, tasks, results)))
        flat: list[Trajectory] = []
        for result in results:
            assert not inspect.isawaitable(result)
            flat.extend(result)
        return flat

    def _task(
        self,
        round_: _Round,
        number: int,
        prompt: Prompt,
        step: int,
        sampling: SamplingParams,
        is_val: bool,
    ) -> RolloutTask:
        # Validation draws from streams of its own, so that it does not move training's.
        phase = -step - 1 if is_val else step

        async def ask(model: str, tokens: Sequence[int], params: SamplingParams) -> Completion:
            stream = (self._seed, phase, prompt.index, prompt.run_id, task.turns)
            task.turns += 1
            return await round_.ask(number, model, GenerationRequest(tokens, params, stream))

        task = RolloutTask(
            data=prompt.data,
            item=prompt.index,
            run_id=prompt.run_id,
            group_id=prompt.group_id,
            is_val=is_val,
            sampling=sampling,
            ask=ask,
            tokenizers=self._tokenizers,
            prompt_key=prompt.prompt_key,
            answer_key=prompt.answer_key,
        )
        return task

    def _start(self, task: RolloutTask) -> list[Trajectory] | Awaitable[list[Trajectory]]:
        try:
            result = self._worker.rollout(task)
            if not inspect.isawaitable(result):
                return self._checked(task, result)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            return [self._failed(task, error)]
        return self._await(task, result)

    async def _await(
        self, task: RolloutTask, result: Awaitable[Trajectory | list[Trajectory]]
    ) -> list[Trajectory]:
        try:
            return self._checked(task, await result)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            return [self._failed(task, error)]

    def _checked(self, task: RolloutTask, result: object) -> list[Trajectory]:
        trajectories: list[Trajectory] = []
        for trajectory in result if isinstance(result, list) else [result]:
            if not isinstance(trajectory, Trajectory):
                raise RunError(
                    f"{type(self._worker).__name__}.rollout returned "
                    f"{type(trajectory).__name__}; a Trajectory or a list of them is expected"
                )
            trajectory.check()
            self._check_vocabulary(trajectory)
            trajectories.append(trajectory)
        return trajectories

    def _check_vocabulary(self, trajectory: Trajectory) -> None:
        service = self._services.get(trajectory.model)
        if service is not None and max(trajectory.tokens) >= service.vocabulary_size:
            raise RunError(
                f"{type(self._worker).__name__} built a trajectory with token "
                f"{max(trajectory.tokens)}, outside the vocabulary of model "
                f"{trajectory.model!r} ({service.vocabulary_size} tokens)"
            )

    def _failed(self, task: RolloutTask, error: BaseException) -> Trajectory:
        """An attempt that raised: counted, out of all statistics, never a reward of 0."""
        at = raised_at(error)
        said = one_line(error) + (f" ({at})" if at else "")
        name = f"worker {type(self._worker).__name__}"
        message = f"an attempt is invalid: {name} raised {said}; the traceback is in log.txt"
        warn_once(self._worker, failure_key(self._worker, error), message, error)
        # It waits in the pool of the model that was asked, with as many fields as its group.
        return Trajectory(
            tokens=[0],
            loss_mask=[0],
            logprobs=[0.0],
            model=self._worker.config.get("model", "policy"),
            group_id=task.group_id,
            run_id=task.run_id,
            valid=False,
            finish_reason="error",
            failure=said,
            is_val=task.is_val,
        )


async def _finish_all(
    round_: _Round,
    tasks: Sequence[RolloutTask],
    results: Sequence[list[Trajectory] | Awaitable[list[Trajectory]]],
) -> list[list[Trajectory]]:
    async def finish(number: int, result: Awaitable[list[Trajectory]]) -> list[Trajectory]:
        try:
            return await result
        finally:
            round_.ended(number)

    running: dict[int, asyncio.Task[list[Trajectory]]] = {}
    for number, result in enumerate(results):
        if inspect.isawaitable(result):
            round_.opened(number)
            running[number] = asyncio.create_task(finish(number, result))
    try:
        await asyncio.gather(*running.values())
    finally:
        for task in running.values():
            task.cancel()
    return [
        running[number].result() if number in running else result  # type: ignore[misc]
        for number, result in enumerate(results)
    ]
