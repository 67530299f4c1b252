"""Evaluators that are made of functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from plugrl.core.plugins.user_code.function_components import component_class
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult, Evaluator


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
    """The same for an ``async`` function."""

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
    """The evaluator class of a function ``f(data, target)``, plain or ``async``; others as is.

    The function returns an :class:`EvaluationRunResult`, or a number, which is the reward. With a
    third parameter it gets the evaluator, for ``config`` and ``ask``. One function always gives
    one class.

    Raises:
        TypeError: the function has other parameters.
    """
    parameters = ("data", "target", "evaluator")
    return component_class(value, FunctionEvaluator, AsyncFunctionEvaluator, parameters)
