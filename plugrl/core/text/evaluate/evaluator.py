"""Evaluators: from an answer to a reward, or to the fact that there is none."""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from plugrl.core.component import Component
from plugrl.core.config.names import columns_in
from plugrl.core.errors import UsageError
from plugrl.core.plugins.user_code.copies import own_copy
from plugrl.core.plugins.user_code.error_location import (
    is_stop,
    location_suffix,
    one_line,
    raised_at,
)
from plugrl.core.text.rollout.fibers import Overrun
from plugrl.core.text.rollout.time_limits import call_with_limit, run_coroutine, run_in_steps
from plugrl.core.wording import bounded

if TYPE_CHECKING:
    from plugrl.core.text.inference.requests import Completion
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.inference.tokenizer import Tokenizer


@dataclass(slots=True)
class BaseEvaluationTarget:
    """What an evaluator judges: the final answer of an agent.

    ``is_truncated`` says that the answer was cut off at its limit of tokens. What that is worth is
    the evaluator's decision: nothing else changes the reward. ``token_ids`` are the sampled tokens,
    all of them where an agent took several turns.
    """

    final_answer: str
    is_truncated: bool = False
    token_ids: Sequence[int] = field(default=(), kw_only=True)


#: How modules of plugrl's own evaluators begin.
_OWN = f"{__name__.partition('.')[0]}."
#: A problem and an answer to it, as :meth:`Evaluator.evaluate` takes them.
EvaluationItem = tuple[Mapping[str, Any], BaseEvaluationTarget]


class ModelAccess(Protocol):
    """How an evaluator asks models while it judges; see :meth:`Evaluator.ask`."""

    tokenizers: Mapping[str, Tokenizer]

    def ask(
        self, model: str, tokens: Sequence[int], sampling: SamplingParams | None = None, /
    ) -> Awaitable[Completion]:
        """The answer of ``model`` to prompt ``tokens``."""


#: Model access for the current evaluation; each attempt has its own.
MODEL_ACCESS: ContextVar[ModelAccess | None] = ContextVar("plugrl_model_access", default=None)


@dataclass(slots=True)
class EvaluationRunResult:
    """An evaluator's judgement. ``metrics`` are averaged into the run's metrics."""

    reward: float = 0.0
    ground_truth: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    extra_info: dict[str, Any] = field(default_factory=dict)


class Evaluator(Component, ABC):
    """Judges one answer to one problem; ``evaluate`` may be plain or ``async``.

    Attributes:
        reference_key: column with the reference answer, ``data.answer_key`` in a run.
        prompt_key: column with the prompt, ``data.prompt_key`` in a run.
    """

    reference_key: str = "answer"
    prompt_key: str = "prompt"
    #: Whether what it names by a setting ``answer_key`` must be a text, which is checked early.
    compares_answers: ClassVar[bool] = False
    #: Names of all metrics that this very class can give, so that settings which name another are
    #: refused before the run; None: it does not say.
    metric_names: ClassVar[Collection[str] | None] = None

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns that it reads, by the setting that names each; they are checked early.

        By default those that fields of ``Config`` name which say ``names="column"``.

        Args:
            section: the evaluator's section, found at ``path``.
            data: the section ``data``.
            path: where the configuration picks the evaluator.
            is_val: whether held-out problems are asked about.
        """
        return columns_in(cls, section, path)

    @classmethod
    def possible_metrics(
        cls, section: Mapping[str, Any], of: Callable[[str], Collection[str] | None]
    ) -> Collection[str] | None:
        """Names of all metrics that it can give; None: that is not known.

        Args:
            section: the evaluator's section.
            of: gives those of an evaluator that this one is made of, by its place in the section.
        """
        return cls.metric_names

    @abstractmethod
    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult | Awaitable[EvaluationRunResult]:
        """Judge ``evaluation_target`` against the problem ``data``.

        An exception, a reward that is not a finite number or a result of another type make the
        trajectory invalid: it is counted and not trained on.
        """

    def evaluate_batch(
        self, items: Sequence[EvaluationItem]
    ) -> Sequence[EvaluationRunResult] | Awaitable[Sequence[EvaluationRunResult]]:
        """Judge several answers at once, where that is cheaper; override it to be called.

        It is called once all open attempts wait, with the answers that there are, and gives one
        judgement for each, in order, equal to that of :meth:`evaluate`: how many answers come
        together depends on the number of processes. It cannot ask models.
        """
        raise NotImplementedError

    def combine(self, build: Callable[[str], Evaluator]) -> None:
        """Build the evaluators that this one is made of; called once, before it judges.

        Args:
            build: gives the evaluator of a place in this one's own section, such as
                ``criteria[0].evaluator``.
        """

    def ask(
        self, model: str, tokens: Sequence[int], sampling: SamplingParams | None = None
    ) -> Awaitable[Completion]:
        """The answer of ``model``, a key of ``models``, to prompt ``tokens``.

        For ``async def evaluate`` while it judges an attempt of a rollout. Without ``sampling``
        it is greedy.

        Raises:
            UsageError: nobody awaits a judgement that may ask.
        """
        from plugrl.core.text.inference.sampling import SamplingParams

        return self._model_access().ask(model, tokens, sampling or SamplingParams(temperature=0.0))

    def tokenizer(self, model: str) -> Tokenizer:
        """The tokenizer of ``model``, where :meth:`ask` works.

        Raises:
            UsageError: as :meth:`ask`, or there is no such model.
        """
        tokenizers = self._model_access().tokenizers
        if model not in tokenizers:
            known = ", ".join(sorted(tokenizers)) or "none"
            raise UsageError(f"no model {model!r} for an evaluator to ask; models are: {known}")
        return tokenizers[model]

    def _model_access(self) -> ModelAccess:
        access = MODEL_ACCESS.get()
        if access is None:
            raise UsageError(
                f"{type(self).__name__} asks a model where nothing answers: models are asked in "
                "`async def evaluate`, which a rollout worker calls with `await worker.judged(...)`"
            )
        return access


def works_on_batches(evaluator: Evaluator) -> bool:
    """Whether ``evaluator`` has an ``evaluate_batch`` of its own."""
    return type(evaluator).evaluate_batch is not Evaluator.evaluate_batch


def is_plain(evaluator: Evaluator) -> bool:
    """Whether ``evaluator`` judges one answer at a time, in a function that awaits nothing."""
    asynchronous = inspect.iscoroutinefunction(type(evaluator).evaluate)
    return not asynchronous and not works_on_batches(evaluator)


class EvaluationFailedError(Exception):
    """An evaluator raised, or returned something that is not a judgement.

    An evaluator may raise it itself; the text is then all that is said, besides its name.
    """


class NotApplicableError(EvaluationFailedError):
    """An evaluator has nothing to say about an answer; among several, the others decide."""


def evaluate(
    evaluator: Evaluator, data: Mapping[str, Any], target: BaseEvaluationTarget
) -> EvaluationRunResult:
    """Ask a plain or ``async`` ``evaluator`` and check its answer; no model can be asked.

    Raises:
        EvaluationFailedError: it raised, or its answer is no finite reward with float metrics.
    """
    try:
        result = evaluator.evaluate(*copy_item(data, target))
        if inspect.isawaitable(result):
            result = run_coroutine(_await_result(result))
    except EvaluationFailedError:
        raise
    except BaseException as error:
        if is_stop(error) or isinstance(error, Overrun):
            raise
        raise failed_evaluation(evaluator, error, data) from error
    return validate_result(evaluator, result)


async def evaluate_async(
    evaluator: Evaluator, data: Mapping[str, Any], target: BaseEvaluationTarget
) -> EvaluationRunResult:
    """:func:`evaluate` where models can be asked; the errors are the same."""
    try:
        item = copy_item(data, target)

        def code() -> str:
            return code_of(evaluator, "evaluate")

        if inspect.iscoroutinefunction(evaluator.evaluate):
            given: Any = evaluator.evaluate(*item)
        else:
            given = await call_with_limit(lambda: evaluator.evaluate(*item), code)
        if not inspect.isawaitable(given):
            result: Any = given
        elif type(evaluator).__module__.startswith(_OWN):
            # They combine those of users, each of which has its own limit, and do not block.
            result = await given
        else:
            result = await run_in_steps(given, code)
    except EvaluationFailedError:
        raise
    except BaseException as error:
        if is_stop(error) or isinstance(error, Overrun):
            raise
        raise failed_evaluation(evaluator, error, data) from error
    return validate_result(evaluator, result)


def copy_item(data: Mapping[str, Any], target: BaseEvaluationTarget) -> EvaluationItem:
    """Copies for one evaluator: others judge the same problem, and the same answer, after it."""
    return own_copy(data), copy.copy(target)


async def _await_result(result: Awaitable[Any]) -> Any:
    return await result


def failed_evaluation(
    evaluator: Evaluator, error: BaseException, data: Mapping[str, Any]
) -> EvaluationFailedError:
    """The failure of an evaluator that raised ``error``; the caller says what it comes from."""
    return EvaluationFailedError(f"{name_of(evaluator)} raised {_describe_error(error, data)}")


def validate_result(
    evaluator: Evaluator, result: Any, method: str = "evaluate"
) -> EvaluationRunResult:
    """``result`` of ``evaluator`` with plain numbers.

    Raises:
        EvaluationFailedError: it is no judgement.
    """
    try:
        return _with_plain_numbers(result)
    except ValueError as fault:
        # The place is looked up here alone: it reads the method's source.
        at = location_suffix(_function_of(evaluator, method))
        raise EvaluationFailedError(
            f"{name_of(evaluator)} returned {bounded(str(fault))}{at}"
        ) from None


def code_of(evaluator: Evaluator, method: str) -> str:
    """What messages call the code of an evaluator: its name, file and line."""
    return f"evaluator {name_of(evaluator)}{location_suffix(_function_of(evaluator, method))}"


def _function_of(evaluator: Evaluator, method: str) -> Any:
    return getattr(evaluator, "function", None) or getattr(type(evaluator), method)


def name_of(evaluator: Evaluator) -> str:
    """What messages call an evaluator."""
    return type(evaluator).__name__


def _with_plain_numbers(given: Any) -> EvaluationRunResult:
    """A copy of a judgement with plain numbers: an evaluator may give one object again and again.

    Raises:
        ValueError: it is no judgement; the text says what it is and what is expected.
    """
    if not isinstance(given, EvaluationRunResult):
        raise ValueError(f"{type(given).__name__}; an EvaluationRunResult is expected")
    result: EvaluationRunResult = copy.copy(given)
    result.reward = _finite("reward", result.reward)
    metrics: Any = result.metrics
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics of type {type(metrics).__name__}; a dict of numbers is expected")
    numbers = {str(key): _finite(f"metric {key!r}", value) for key, value in metrics.items()}
    result.metrics = numbers
    if not isinstance(result.extra_info, Mapping):
        kind = type(result.extra_info).__name__
        raise ValueError(f"extra_info of type {kind}; a dict is expected")
    result.extra_info = own_copy(dict(result.extra_info))
    return result


def _describe_error(error: BaseException, data: Mapping[str, Any]) -> str:
    """The error on one line; for a missing key, with the columns that there are."""
    columns = ""
    if isinstance(error, KeyError):
        columns = f"; data has: {bounded(', '.join(map(str, data)))}"
    at = raised_at(error)
    return one_line(error) + columns + (f" ({at})" if at else "")


def _finite(name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("text")
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name} of type {type(value).__name__}; a number is expected") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} {number}; a finite number is expected")
    return number
