"""Exact match: an answer is right when it equals the reference, letter by letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schema import described
from plugrl.core.text.evaluation import BaseEvaluationTarget, EvaluationRunResult, Evaluator


@dataclass
class ExactMatchConfig:
    """Options of the evaluator ``exact_match``."""

    answer_key: str | None = described(
        None, "column with the reference answer; null: that of data.answer_key"
    )
    strip: bool = described(True, "ignore white space around both")
    ignore_case: bool = described(False, "compare without regard to case")


class ExactMatchEvaluator(Evaluator):
    """Reward 1 for an answer that equals the reference, else 0."""

    Config: ClassVar[type] = ExactMatchConfig

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The column of the reference answer."""
        if section["answer_key"] is None:
            return {"data.answer_key": data["answer_key"]}
        return {f"{path}.answer_key": section["answer_key"]}

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Compare the final answer with the problem's reference answer.

        Raises:
            KeyError: the problem has no reference answer.
        """
        truth = str(data[self.config.answer_key or self.reference_key])
        reward = float(self._form(evaluation_target.final_answer) == self._form(truth))
        return EvaluationRunResult(
            reward=reward, ground_truth=truth, metrics={"exact_match": reward}
        )

    def _form(self, text: str) -> str:
        text = text.strip() if self.config.strip else text
        return text.casefold() if self.config.ignore_case else text
