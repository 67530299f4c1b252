"""Evaluators that are made of functions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from plugrl.core.plugins.user_code.function_components import class_of, component_class
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult, Evaluator
from plugrl.core.text.evaluate.reward_functions import (
    FORM,
    AsyncRewardFunctionEvaluator,
    RewardFunctionEvaluator,
    is_reward_function,
    reward_function_fault,
)

#: Names of parameters of those who mean lists, or the arguments of another library.
_FOREIGN = (
    *("prompt", "prompts", "completion", "completion_ids", "response", "responses"),
    *("data_source", "solution_str", "ground_truth"),
)


class FunctionEvaluator(Evaluator):
    """An evaluator made of a function, see :func:`as_evaluator`."""

    function: ClassVar[Callable[..., Any]]

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult | Awaitable[EvaluationRunResult]:
        """Call the function."""
        arguments = (data, evaluation_target, self)[: type(self)._parameter_count]
        result: EvaluationRunResult = _result_of(self.function(*arguments))
        return result

    _parameter_count: ClassVar[int] = 2


class AsyncFunctionEvaluator(FunctionEvaluator):
    """An evaluator made of an ``async`` function, see :func:`as_evaluator`."""

    async def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Call the function and await it."""
        arguments = (data, evaluation_target, self)[: type(self)._parameter_count]
        result: EvaluationRunResult = _result_of(await self.function(*arguments))
        return result


def _result_of(value: Any) -> Any:
    """What a function returned, a bare number being a reward."""
    return EvaluationRunResult(value) if isinstance(value, (int, float)) else value


def as_evaluator(value: Any) -> Any:
    """The evaluator class of a function, plain or ``async``; what is none comes back as it is.

    ``f(data, target)`` judges one answer and returns an :class:`EvaluationRunResult`, or a number,
    which is the reward; with a third parameter it gets the evaluator, for ``config`` and ``ask``.
    ``f(prompts, completions, **columns)``, recognised by its parameter ``completions``, judges
    several at once, see :mod:`plugrl.core.text.evaluate.reward_functions`. One function always
    gives one class.

    Raises:
        TypeError: the function has other parameters.
    """
    if not inspect.isfunction(value):
        return value
    if is_reward_function(value):
        fault = reward_function_fault(value)
        if fault is not None:
            raise TypeError(f"{value.__name__}{inspect.signature(value)} {fault}")
        awaits = inspect.iscoroutinefunction(value)
        return class_of(value, AsyncRewardFunctionEvaluator if awaits else RewardFunctionEvaluator)
    names = [*inspect.signature(value).parameters]
    foreign = next((name for name in names[:3] if name in _FOREIGN), None)
    if foreign is not None:
        raise TypeError(
            f"{value.__name__} has a parameter {foreign!r} and none named completions; write "
            f"f(data, target), f(data, target, evaluator) or {FORM}"
        )
    parameters = ("data", "target", "evaluator")
    try:
        return component_class(value, FunctionEvaluator, AsyncFunctionEvaluator, parameters)
    except TypeError as error:
        raise TypeError(f"{error}, or {FORM}") from None
