"""Judging: how an attempt gets its reward from evaluators of every kind, one way for all."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError
from plugrl.core.plugins.user_code.error_location import is_stop, location_suffix
from plugrl.core.text.evaluate.evaluator import (
    MODEL_ACCESS,
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    code_of,
    copy_item,
    evaluate_async,
    failed_evaluation,
    name_of,
    validate_result,
    works_on_batches,
)
from plugrl.core.text.rollout.fibers import Overrun, end_if_left_behind
from plugrl.core.text.rollout.task import Judgement, RolloutTask
from plugrl.core.text.rollout.time_limits import call_with_limit, run_in_steps

if TYPE_CHECKING:
    from plugrl.core.factory import Factory
    from plugrl.core.text.inference.requests import Completion
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.inference.tokenizer import Tokenizer


class _TaskModelAccess:
    """Model access of one attempt; remembers a fault that must end the run."""

    def __init__(self, task: RolloutTask) -> None:
        self._task = task
        self.tokenizers: Mapping[str, Tokenizer] = task.tokenizers
        self.fatal: PlugrlError | None = None

    async def ask(
        self, model: str, tokens: Sequence[int], sampling: SamplingParams | None = None, /
    ) -> Completion:
        end_if_left_behind()
        try:
            return await self._task.ask(model, tokens, sampling)
        except PlugrlError as error:
            # An unknown model or a broken engine is no matter of one answer.
            self.fatal = error
            raise


async def judgement(
    evaluator: Evaluator, task: RolloutTask, target: BaseEvaluationTarget
) -> EvaluationRunResult:
    """What ``evaluator`` says of the answer ``target`` of an attempt.

    Raises:
        EvaluationFailedError: it failed.
        PlugrlError: what it asked a model for shows a fault that must end the run.
    """
    if works_on_batches(evaluator) and task.batch_judge is not None:
        entry = Judgement((task.data, target))
        await task.batch_judge(entry, lambda entries: judge_batch(evaluator, entries))
        if isinstance(entry.outcome, EvaluationRunResult):
            return entry.outcome
        raise entry.outcome or EvaluationFailedError(f"{name_of(evaluator)} gave no judgement")
    access = _TaskModelAccess(task)
    token = MODEL_ACCESS.set(access)
    try:
        return await evaluate_async(evaluator, task.data, target)
    except EvaluationFailedError:
        if access.fatal is not None:
            raise access.fatal from None
        raise
    finally:
        MODEL_ACCESS.reset(token)


async def judge_batch(evaluator: Evaluator, entries: Sequence[Judgement]) -> None:
    """Let ``evaluator`` judge ``entries`` at once and fill in their outcomes.

    When it raises, each answer is judged alone, so that one bad answer does not cost the others
    and results do not depend on which answers came together.
    """
    token = MODEL_ACCESS.set(None)
    try:
        items = [copy_item(*entry.item) for entry in entries]
        results: Any = await call_with_limit(
            lambda: evaluator.evaluate_batch(items), lambda: code_of(evaluator, "evaluate_batch")
        )
        if inspect.isawaitable(results):
            results = await run_in_steps(results, lambda: code_of(evaluator, "evaluate_batch"))
    except BaseException as error:
        if is_stop(error) or isinstance(error, Overrun):
            raise
        if len(entries) > 1:
            for entry in entries:
                await judge_batch(evaluator, [entry])
            return
        entries[0].outcome = failed_evaluation(evaluator, error, entries[0].item[0])
        entries[0].outcome.__cause__ = error
        return
    finally:
        MODEL_ACCESS.reset(token)
    fault = _batch_fault(results, len(entries))
    if fault is not None:
        at = location_suffix(type(evaluator).evaluate_batch)
        for entry in entries:
            entry.outcome = EvaluationFailedError(f"{name_of(evaluator)} returned {fault}{at}")
        return
    for entry, result in zip(entries, results, strict=True):
        if isinstance(result, EvaluationFailedError):
            entry.outcome = result
            continue
        try:
            entry.outcome = validate_result(evaluator, result, "evaluate_batch")
        except EvaluationFailedError as failure:
            entry.outcome = failure


def _batch_fault(results: Any, count: int) -> str | None:
    """What is wrong with the judgements of a batch as a whole; None: nothing."""
    expected = "a list with one for each answer is expected"
    if not isinstance(results, Sequence) or isinstance(results, (str, bytes)):
        return f"{type(results).__name__} for a batch; {expected}"
    if len(results) != count:
        return f"{len(results)} judgements for {count} answers; {expected}"
    return None


def make_evaluator(
    factory: Factory, section: Any, path: str, *, reference_key: str, prompt_key: str
) -> Evaluator:
    """The evaluator that ``section`` at ``path`` picks, and those that it is made of.

    Raises:
        ConfigError: a section is wrong.
        PluginError: a constructor failed.
    """
    evaluator: Evaluator = factory.build("evaluator", section, path)
    evaluator.reference_key = reference_key
    evaluator.prompt_key = prompt_key

    def build(place: str) -> Evaluator:
        from plugrl.core.config.preflight import section_at

        return make_evaluator(
            factory,
            section_at(section, place),
            f"{path}.{place}",
            reference_key=reference_key,
            prompt_key=prompt_key,
        )

    evaluator.combine(build)
    return evaluator
