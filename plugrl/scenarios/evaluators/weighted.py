"""Weighted criteria: several evaluators judge an answer, and their rewards are added up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    evaluate_async,
)


@dataclass
class CriterionConfig:
    """One evaluator, and what its reward counts."""

    evaluator: Any = component("evaluator", help="what judges by this criterion")
    weight: float = described(1.0, "its reward counts this many times")
    name: str | None = described(None, "name in the metrics; null: the evaluator's type")

    def __post_init__(self) -> None:
        if self.evaluator is None:
            raise ConfigError("evaluator is missing; name what judges by this criterion")
        if (not self.name and self.name is not None) or "/" in (self.name or ""):
            raise ConfigError(f"name {self.name!r} must be a word without slashes")


@dataclass
class WeightedConfig:
    """Options of the evaluator ``weighted``."""

    criteria: list[CriterionConfig] = described([], "evaluators with their weights and names")
    normalize: bool = described(False, "divide by the sum of the weights")

    def __post_init__(self) -> None:
        names = _names(self.criteria)
        if not names:
            raise ConfigError("criteria is empty; name at least one evaluator with its weight")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two criteria are named {twice!r}; give one another name")
        if self.normalize and sum(_weights(self.criteria)) <= 0:
            raise ConfigError("the weights add up to nothing above 0, so that normalize=true fails")


def _names(criteria: Iterable[Any]) -> list[str]:
    """What the metrics call the criteria."""
    plain = [_plain(each) for each in criteria]
    return [each.get("name") or _type_of(each["evaluator"]) for each in plain]


def _weights(criteria: Iterable[Any]) -> list[float]:
    return [float(_plain(each)["weight"]) for each in criteria]


def _plain(criterion: Any) -> Mapping[str, Any]:
    return criterion if isinstance(criterion, Mapping) else vars(criterion)


def _type_of(section: Any) -> str:
    if not isinstance(section, Mapping):
        return str(section or "evaluator")
    name = section.get("type") or section.get("custom_evaluator_class_name") or "evaluator"
    return str(name).rpartition("/")[2]


class WeightedEvaluator(Evaluator):
    """The sum of the rewards of several evaluators, each times its weight.

    Metrics: ``NAME`` with the reward of each criterion, and ``NAME/METRIC`` with its metrics. When
    one of them fails the attempt is invalid: a sum without it would be another reward.
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
            EvaluationFailedError: a member gave no judgement.
        """
        if not self._members:
            raise UsageError(
                f"{type(self).__name__} has no members yet; build it by make_evaluator"
            )
        names = _names(self.config.criteria)
        results = await asyncio.gather(
            *(
                _judged(name, member, data, evaluation_target)
                for name, member in zip(names, self._members, strict=True)
            )
        )
        failure = next((r for r in results if isinstance(r, EvaluationFailedError)), None)
        if failure is not None:
            raise failure
        judged = [result for result in results if isinstance(result, EvaluationRunResult)]
        return self._sum(names, judged)

    def _sum(self, names: list[str], results: list[EvaluationRunResult]) -> EvaluationRunResult:
        metrics: dict[str, float] = {}
        reward = 0.0
        weights = _weights(self.config.criteria)
        for name, weight, result in zip(names, weights, results, strict=True):
            reward += weight * result.reward
            metrics[name] = result.reward
            metrics |= {f"{name}/{key}": value for key, value in result.metrics.items()}
        if self.config.normalize:
            reward /= sum(weights)
        truths = [result.ground_truth for result in results if result.ground_truth]
        extracted = [r.extra_info["extracted"] for r in results if "extracted" in r.extra_info]
        return EvaluationRunResult(
            reward=reward,
            ground_truth=truths[0] if truths else "",
            metrics=metrics,
            extra_info={"extracted": extracted[0]} if extracted else {},
        )


async def _judged(
    name: str, member: Evaluator, data: Mapping[str, Any], target: BaseEvaluationTarget
) -> EvaluationRunResult | EvaluationFailedError:
    """A judgement or why there is none: the other members are not cut off in their questions."""
    try:
        return await evaluate_async(member, data, target)
    except EvaluationFailedError as error:
        failure = EvaluationFailedError(f"of criterion {name!r}: {error}")
        failure.__cause__ = error.__cause__ or error
        return failure
