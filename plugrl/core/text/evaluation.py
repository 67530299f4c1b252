"""Evaluators: from an answer to a reward, or to the fact that there is none."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plugrl.core.blame import one_line, raised_at, where
from plugrl.core.component import Component


@dataclass(slots=True)
class BaseEvaluationTarget:
    """What an evaluator judges: the final answer of an agent."""

    final_answer: str
    is_truncated: bool = False


@dataclass(slots=True)
class EvaluationRunResult:
    """An evaluator's judgement. ``metrics`` are averaged into the run's metrics."""

    reward: float = 0.0
    ground_truth: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    extra_info: dict[str, Any] = field(default_factory=dict)


class Evaluator(Component, ABC):
    """Judges one answer to one problem.

    Attributes:
        reference_key: column with the reference answer, ``data.answer_key`` in a run.
    """

    reference_key: str = "answer"

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The columns that it reads, by the setting that names each; they are checked early.

        Args:
            section: the evaluator's section, found at ``path``.
            data: the section ``data``.
            path: where the configuration picks the evaluator.
            is_val: whether held-out problems are asked about.
        """
        return {}

    @abstractmethod
    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Judge ``evaluation_target`` against the problem ``data``.

        An exception, a reward that is not a finite number or a result of another type make the
        trajectory invalid: it is counted and not trained on.
        """


class EvaluationFailedError(Exception):
    """An evaluator raised or answered something that is no judgement."""


def evaluate(
    evaluator: Evaluator, data: Mapping[str, Any], target: BaseEvaluationTarget
) -> EvaluationRunResult:
    """Ask ``evaluator`` and check its answer.

    Raises:
        EvaluationFailedError: it raised, or its answer is no finite reward with float metrics.
    """
    name = type(evaluator).__name__
    try:
        result = evaluator.evaluate(data, target)
    except (Exception, SystemExit) as error:
        raise EvaluationFailedError(f"{name} raised {_said(error, data)}") from error
    try:
        return _checked(result)
    except ValueError as fault:
        # The place is looked up here alone: it reads the method's source.
        at = where(type(evaluator).evaluate)
        raise EvaluationFailedError(f"{name} returned {fault}{at}") from None


def _checked(result: Any) -> EvaluationRunResult:
    """``result`` with plain numbers.

    Raises:
        ValueError: it is no judgement; the text says what it is and what is expected.
    """
    if not isinstance(result, EvaluationRunResult):
        raise ValueError(f"{type(result).__name__}; an EvaluationRunResult is expected")
    result.reward = _finite("reward", result.reward)
    metrics: Any = result.metrics
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics of type {type(metrics).__name__}; a dict of numbers is expected")
    result.metrics = {key: _finite(f"metric {key!r}", value) for key, value in metrics.items()}
    return result


def _said(error: BaseException, data: Mapping[str, Any]) -> str:
    """The error on one line; for a missing key, with the columns that there are."""
    columns = f"; data has: {', '.join(map(str, data))}" if isinstance(error, KeyError) else ""
    at = raised_at(error)
    return one_line(error) + columns + (f" ({at})" if at else "")


def _finite(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name} of type {type(value).__name__}; a number is expected") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} {number}; a finite number is expected")
    return number
