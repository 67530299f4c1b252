"""Rollout workers: from a problem to trajectories."""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.component import Component
from plugrl.core.config.names import columns_in
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.config.schemas.temperature import check_temperature
from plugrl.core.errors import ConfigError, PlugrlDeprecationWarning, UsageError
from plugrl.core.foreign_names import OF_WORKERS
from plugrl.core.plugins.user_code.error_location import failure_key, warn_once
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.text.data.loader import require_column
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    evaluate,
    is_plain,
)
from plugrl.core.text.inference.sampling import SamplingParams, stop_texts, stops_of
from plugrl.core.text.inference.services import check_stop_tokens
from plugrl.core.text.rollout.fibers import wait_for
from plugrl.core.text.rollout.judge import judgement
from plugrl.core.text.rollout.task import CURRENT, RolloutTask
from plugrl.core.text.trajectory import NOT_SAMPLED, WRITTEN, Trajectory
from plugrl.core.wording import LONGEST, bounded

if TYPE_CHECKING:
    from plugrl.core.scenario import DataItem
    from plugrl.core.text.evaluate.evaluator import Evaluator
    from plugrl.core.text.inference.requests import Completion
    from plugrl.core.text.inference.services import InferenceService


@dataclass
class RolloutWorkerConfig:
    """How a problem becomes a prompt and an answer."""

    evaluator: Any = component("evaluator", help="what rewards an answer")
    model: str = described("policy", "the model that is asked, a key of `models`")
    temperature: float = described(1.0, "sampling temperature; 0: greedy", at_least=0, at_most=100)
    top_p: float = described(
        1.0, "nucleus sampling: keep this probability mass", above=0, at_most=1
    )
    task_name: str | None = described(
        None, "what every problem has as `task_name`, unless its data has one; null: nothing"
    )
    max_prompt_length: int = described(1024, "longest prompt in tokens", at_least=1, at_most=10**8)
    max_response_length: int = described(256, "longest answer in tokens", at_least=1, at_most=10**8)
    stop: list[str] | str = described(
        [], "texts that end an answer, with the token that completes one; the answer keeps it"
    )
    stop_token_ids: list[int] = described(
        [],
        "tokens that end an answer, besides the end tokens of the model's folder",
        at_least=0,
        at_most=10**8,
    )
    processes: int = described(
        0,
        "processes that run the worker and its evaluator; 0: the driver",
        at_least=0,
        at_most=10**4,
    )
    executor: Any = component(
        "executor", help="where such processes live instead, such as ray; absent: see processes"
    )
    timeout: float | None = described(
        None,
        "seconds that one attempt may take, waiting for models left out; null: any",
        above=0,
        at_most=1e8,
    )

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not all(stop_texts(self.stop)):
            raise ConfigError("stop must be a text or a list of texts, none of them empty")
        if self.processes and self.executor is not None:
            raise ConfigError(
                "processes and executor exclude each other; leave processes out, and write "
                f"executor.workers={self.processes} for as many"
            )


def sampling_of(section: Any) -> SamplingParams:
    """How a section ``rollout_worker`` has answers sampled."""
    return SamplingParams(
        temperature=section.temperature,
        top_p=section.top_p,
        max_new_tokens=section.max_response_length,
        **stops_of(section),
    )


def check_stops(
    section: Any, worker: RolloutWorker, services: Mapping[str, InferenceService]
) -> None:
    """Refuse ``stop_token_ids`` of a section ``rollout_worker`` at which no answer can end.

    Raises:
        ConfigError: a model that the worker asks has no such token, or its service cannot do it.
    """
    tokens = section.get("stop_token_ids") or ()
    names: Sequence[Any] = [section.get("model")]
    if worker.checks_models:
        names = list(getattr(worker, "models", {}).values())
    for name in dict.fromkeys(names) if tokens else ():
        if name in services:
            check_stop_tokens(tokens, name, services[name], "rollout_worker.stop_token_ids")


class RolloutWorker(RenamedMethods, Component, ABC):
    """Turns a problem into one trajectory or several; subclass it to write an agent.

    ``rollout`` may be ``async`` or plain. A failure of one attempt raises; it is counted and
    gives an invalid trajectory, never a reward of 0.
    """

    Config: ClassVar[type] = RolloutWorkerConfig
    FOREIGN: ClassVar[Mapping[str, str]] = OF_WORKERS
    #: Whether a plain ``rollout`` may call ``task.ask_now``. One that never does is called in
    #: place when this is false, which is faster than in a thread.
    asks_now: ClassVar[bool] = True
    #: Whether its ``preflight`` looks at the models that it names; the trainer's does otherwise.
    checks_models: ClassVar[bool] = False
    #: Whether training reads ``task.answer``, so that every problem is looked at before the start.
    trains_on_answers: ClassVar[bool] = False
    #: Whether the evaluator judges attempts that are trained on, or held-out ones alone.
    judges_training: ClassVar[bool] = True

    #: Names of all numbers that this very class logs of an attempt; None: it does not say.
    logs: ClassVar[Collection[str] | None] = None
    #: Extra fields that this very class gives its trajectories; None: it does not say.
    gives: ClassVar[Collection[str] | None] = None

    def __init__(self, config: Any = None, evaluator: Evaluator | None = None) -> None:
        super().__init__(config)
        self.evaluator = evaluator

    @cached_property
    def logger(self) -> logging.Logger:
        """For what the worker has to say; its lines are in ``log.txt`` of the run."""
        return logging.getLogger(f"plugrl.rollout_worker.{type(self).__name__}")

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns that it reads besides the prompt, as :meth:`Evaluator.columns`."""
        return columns_in(cls, section, path)

    @classmethod
    def read_rows(
        cls,
        items: Sequence[DataItem],
        section: Mapping[str, Any],
        data: Mapping[str, Any],
        place: str,
        *,
        is_val: bool,
    ) -> Sequence[DataItem]:
        """The problems that rows of data stand for; by default a row is one, and has a prompt.

        Args:
            items: all rows, at least one.
            section: of the worker.
            data: the section ``data``.
            place: how messages call the rows.
            is_val: whether they are held out.

        Raises:
            ConfigError: a row lacks a column, or holds what it must not.
        """
        setting = "data.prompt_key" if place == "data" else place
        require_column(items, data["prompt_key"], setting)
        return items

    @classmethod
    def trajectories_per_attempt(cls, section: Mapping[str, Any]) -> int:
        """How many trajectories an attempt is expected to give, for batch plans."""
        return 1

    @classmethod
    def training_temperatures(
        cls, section: Mapping[str, Any]
    ) -> Iterable[tuple[str, float | None, str]]:
        """At which temperatures answers are drawn that are trained on, as far as settings tell.

        Gives the key of the section that says so, the temperature, and how it is set to 1.
        """
        yield "temperature", section.get("temperature"), "write 1"

    @abstractmethod
    def rollout(
        self, task: RolloutTask
    ) -> Trajectory | list[Trajectory] | Awaitable[Trajectory | list[Trajectory]]:
        """Attempt ``task`` once."""

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add numbers to the metrics of this attempt, means of which are those of the run.

        A name that is logged again replaces its number. An invalid attempt is left out.

        Raises:
            UsageError: no attempt runs here.
            TypeError: a value is no number.
        """
        task = CURRENT.get()
        if task is None:
            raise UsageError(
                "log_metrics is for the code of an attempt: rollout, run_agent and what they call"
            )
        for name, value in metrics.items():
            if isinstance(value, (str, bytes)):
                raise TypeError(f"metric {name!r} is {type(value).__name__}; a number is expected")
            task.logged[name] = float(value)

    def target(self, trajectory: Trajectory, final_answer: str) -> BaseEvaluationTarget:
        """What the evaluator is shown; override it to show more."""
        return BaseEvaluationTarget(final_answer, trajectory.finish_reason == "length")

    def _judged_target(self, trajectory: Trajectory, final_answer: str) -> BaseEvaluationTarget:
        target = self.target(trajectory, final_answer)
        if isinstance(target, BaseEvaluationTarget) and not target.token_ids:
            trained = zip(trajectory.tokens, trajectory.loss_mask, strict=True)
            target.token_ids = [token for token, sampled in trained if sampled]
        return target

    def judge(self, task: RolloutTask, trajectory: Trajectory, final_answer: str) -> Trajectory:
        """:meth:`judged` for plain functions.

        Raises:
            ConfigError: there is no evaluator.
            UsageError: the evaluator is ``async``, and an ``async`` function or another thread
                calls this.
        """
        if is_plain(self._judge):
            return self._apply_judgement(
                task, trajectory, self._evaluate(task, trajectory, final_answer)
            )
        return wait_for(
            self.judged(task, trajectory, final_answer),
            f"worker.judge cannot wait for the evaluator {type(self.evaluator).__name__}; write "
            "`return await worker.judged(task, trajectory, answer)` in an async worker",
        )

    async def judged(
        self, task: RolloutTask, trajectory: Trajectory, final_answer: str
    ) -> Trajectory:
        """Let the evaluator reward ``trajectory``; without a judgement it becomes invalid.

        Raises:
            ConfigError: there is no evaluator.
        """
        target = self._judged_target(trajectory, final_answer)
        try:
            result: Judged = await judgement(self._judge, task, target)
        except EvaluationFailedError as error:
            result = error
        return self._apply_judgement(task, trajectory, result)

    @property
    def _judge(self) -> Evaluator:
        if self.evaluator is None:
            raise ConfigError(
                "rollout_worker.evaluator is missing, so nothing rewards an answer; name one, "
                "such as exact_match"
            )
        return self.evaluator

    def _evaluate(self, task: RolloutTask, trajectory: Trajectory, final_answer: str) -> Judged:
        try:
            target = self._judged_target(trajectory, final_answer)
            return evaluate(self._judge, task.data, target)
        except EvaluationFailedError as error:
            return error

    def _apply_judgement(
        self, task: RolloutTask, trajectory: Trajectory, result: Judged
    ) -> Trajectory:
        if isinstance(result, EvaluationFailedError):
            trajectory.valid = False
            reason = bounded(str(result), 2 * LONGEST)
            trajectory.failure = reason
            message = f"an attempt is invalid: evaluator {reason}; the traceback is in log.txt"
            key = failure_key(self.evaluator, result.__cause__ or result)
            warn_once(self, key, message, result)
            return trajectory
        trajectory.reward = result.reward
        # New mappings: a worker may give several trajectories one and the same.
        trajectory.metrics = {**trajectory.metrics, **result.metrics}
        extracted = result.extra_info.get("extracted")
        if task.is_val and isinstance(extracted, str):
            trajectory.extra_fields = {**trajectory.extra_fields, "extracted": extracted}
        return trajectory


#: What comes of judging an answer.
Judged = EvaluationRunResult | EvaluationFailedError


def demonstration_of(
    task: RolloutTask,
    model: str,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    mask: Sequence[int] | None = None,
    **fields: Any,
) -> Trajectory:
    """The trajectory of an answer that was written and not sampled, to learn from.

    Args:
        task: whose attempt it is.
        model: learns from it.
        prompt: tokens that are not trained.
        answer: tokens that are.
        mask: 1 for each of all these tokens that is trained; None: as said above.
        fields: extra fields.
    """
    return Trajectory(
        tokens=[*prompt, *answer],
        loss_mask=[0] * len(prompt) + [1] * len(answer) if mask is None else list(mask),
        model=model,
        group_id=task.group_id,
        run_id=task.run_id,
        finish_reason=WRITTEN,
        extra_fields=fields,
    )


def written(
    task: RolloutTask, model: str, prompt: Sequence[int], answer: Sequence[int], **fields: Any
) -> Trajectory:
    """The former name of :func:`demonstration_of`."""
    message = "written is now called demonstration_of; write demonstration_of"
    warnings.warn(message, PlugrlDeprecationWarning, stacklevel=2)
    return demonstration_of(task, model, prompt, answer, **fields)


def trajectory_of(
    task: RolloutTask, model: str, prompt: Sequence[int], completion: Completion
) -> Trajectory:
    """The trajectory of one prompt and one answer, exactly as sampled."""
    before, after = len(prompt), len(completion.tokens)
    return Trajectory(
        tokens=[*prompt, *completion.tokens],
        loss_mask=[0] * before + [1] * after,
        logprobs=[0.0] * before + completion.logprobs,
        versions=[NOT_SAMPLED] * before + (completion.versions or [completion.version] * after),
        model=model,
        group_id=task.group_id,
        run_id=task.run_id,
        finish_reason=completion.finish_reason,
        is_val=task.is_val,
        temperature=completion.temperature,
    )
