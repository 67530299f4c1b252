"""Weighted criteria: several evaluators judge an answer, and their rewards are added up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import UsageError
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    NotApplicableError,
    evaluate_async,
)
from plugrl.scenarios.evaluators.weights import check_row, check_rows, names_of, weights_of


@dataclass
class CriterionConfig:
    """One evaluator, and what its reward counts."""

    evaluator: Any = component("evaluator", help="what judges by this criterion")
    weight: float = described(1.0, "its reward counts this many times", at_least=-1e6, at_most=1e6)
    name: str | None = described(None, "name in the metrics; null: the evaluator's type")

    def __post_init__(self) -> None:
        check_row(self, "evaluator", "judges by this criterion")


@dataclass
class WeightedConfig:
    """Options of the evaluator ``weighted``."""

    criteria: list[CriterionConfig] = described([], "evaluators with their weights and names")
    normalize: bool = described(False, "divide by the sum of the weights")

    def __post_init__(self) -> None:
        check_rows("criteria", self.criteria, "evaluator", normalize=self.normalize)


class WeightedEvaluator(Evaluator):
    """The sum of the rewards of several evaluators, each times its weight.

    Metrics: ``NAME`` with the reward of each criterion, and ``NAME/METRIC`` with its metrics. When
    one of them fails the attempt is invalid: a sum without it would be another reward. A reward
    function that returns None does not apply: the others are added up without it.
    """

    Config: ClassVar[type] = WeightedConfig
    conformance: ClassVar[dict[str, Any]] = {
        "config": {
            "criteria": [
                {"evaluator": "exact_match", "weight": 0.8},
                {"evaluator": {"type": "regex", "pattern": r"\d"}, "weight": 0.2},
            ]
        },
    }

    @classmethod
    def possible_metrics(
        cls, section: Mapping[str, Any], of: Callable[[str], Collection[str] | None]
    ) -> Collection[str] | None:
        """The rewards of its criteria, and their own metrics."""
        found: set[str] = set()
        for number, name in enumerate(names_of(section["criteria"], "evaluator")):
            own = of(f"criteria[{number}].evaluator")
            if own is None:
                return None
            found |= {name, *(f"{name}/{metric}" for metric in own)}
        return found

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._members: list[Evaluator] = []

    def combine(self, build: Callable[[str], Evaluator]) -> None:
        """Build the members."""
        count = len(self.config.criteria)
        self._members = [build(f"criteria[{i}].evaluator") for i in range(count)]

    async def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Ask every member, those that wait at the same time.

        Raises:
            EvaluationFailedError: a member gave no judgement, or none applies to the answer.
        """
        if not self._members:
            raise UsageError(
                f"{type(self).__name__} has no members yet; build it by make_evaluator"
            )
        names = names_of(self.config.criteria, "evaluator")
        results = await asyncio.gather(
            *(
                _judge_member(name, member, data, evaluation_target)
                for name, member in zip(names, self._members, strict=True)
            )
        )
        for result in results:
            failed = isinstance(result, EvaluationFailedError)
            if failed and not isinstance(result, NotApplicableError):
                raise result
        judged = [
            (name, weight, result)
            for name, weight, result in zip(
                names, weights_of(self.config.criteria), results, strict=True
            )
            if isinstance(result, EvaluationRunResult)
        ]
        if not judged:
            raise NotApplicableError(f"{type(self).__name__}: no criterion applies to the answer")
        return self._sum(judged)

    def _sum(self, judged: list[tuple[str, float, EvaluationRunResult]]) -> EvaluationRunResult:
        metrics: dict[str, float] = {}
        reward = 0.0
        for name, weight, result in judged:
            reward += weight * result.reward
            metrics[name] = result.reward
            metrics |= {f"{name}/{key}": value for key, value in result.metrics.items()}
        if self.config.normalize:
            reward /= sum(weight for _, weight, _ in judged)
        results = [result for _, _, result in judged]
        truths = [result.ground_truth for result in results if result.ground_truth]
        extracted = [r.extra_info["extracted"] for r in results if "extracted" in r.extra_info]
        return EvaluationRunResult(
            reward=reward,
            ground_truth=truths[0] if truths else "",
            metrics=metrics,
            extra_info={"extracted": extracted[0]} if extracted else {},
        )


async def _judge_member(
    name: str, member: Evaluator, data: Mapping[str, Any], target: BaseEvaluationTarget
) -> EvaluationRunResult | EvaluationFailedError:
    """A judgement or why there is none: the other members are not cut off in their questions."""
    try:
        return await evaluate_async(member, data, target)
    except NotApplicableError as error:
        return error
    except EvaluationFailedError as error:
        failure = EvaluationFailedError(f"of criterion {name!r}: {error}")
        failure.__cause__ = error.__cause__ or error
        return failure
