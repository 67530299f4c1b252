"""Exact match: an answer is right when it equals the reference, letter by letter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult
from plugrl.scenarios.evaluators.references import ReferenceEvaluator, form


@dataclass
class ExactMatchConfig:
    """Options of the evaluator ``exact_match``."""

    answer_key: str | None = described(
        None, "column with the reference answer; null: that of data.answer_key"
    )
    strip: bool = described(True, "ignore white space around both")
    ignore_case: bool = described(False, "compare without regard to case")


class ExactMatchEvaluator(ReferenceEvaluator):
    """Reward 1 for an answer that equals the reference, else 0."""

    Config: ClassVar[type] = ExactMatchConfig
    metric_names: ClassVar[Collection[str]] = ("exact_match",)

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Compare the final answer with the problem's reference answer.

        Raises:
            KeyError: the problem has no reference answer.
        """
        truth = self.reference(data)
        reward = float(
            form(evaluation_target.final_answer, self.config) == form(truth, self.config)
        )
        return EvaluationRunResult(
            reward=reward, ground_truth=truth, metrics={"exact_match": reward}
        )
