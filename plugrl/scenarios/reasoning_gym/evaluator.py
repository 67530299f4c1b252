"""The evaluator ``reasoning_gym``: scores by the rules of each problem's own task."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult, Evaluator
from plugrl.core.time_limited_pool import shared_pool

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_SCORER = "plugrl.scenarios.reasoning_gym.scoring:score"
_COLUMN = "reasoning_gym"


@dataclass
class ReasoningGymEvaluatorConfig:
    """Options of the evaluator ``reasoning_gym``."""

    tag: str | None = described(
        None, "an answer stands between the last <TAG> and </TAG>; null: it is the whole text"
    )
    time_limit: float = described(
        5.0, "seconds of processor time for one answer", above=0, at_most=1e8
    )

    def __post_init__(self) -> None:
        if self.tag is not None and not self.tag.isidentifier():
            raise ConfigError(f"tag {self.tag!r} must be a word such as answer")


class ReasoningGymEvaluator(Evaluator):
    """The score that the task of a problem gives an answer, from 0 to 1; some give parts of 1.

    For problems of the scenario ``reasoning_gym``. Metrics: ``score``, ``solved``: whether it is
    1, and ``extracted``: whether the answer has the tag.
    """

    Config: ClassVar[type] = ReasoningGymEvaluatorConfig
    metric_names: ClassVar[Collection[str]] = ("score", "solved", "extracted")
    conformance: ClassVar[dict[str, Any]] = {
        "data": {
            "prompt": "4 - 1 =",
            "answer": "3",
            "reasoning_gym": {
                "task": "chain_sum",
                "config": {},
                "entry": {"question": "4 - 1 =", "answer": "3", "metadata": {}},
            },
        },
        "right": "3",
        "wrong": "5",
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._score = shared_pool(_SCORER, self.config.time_limit)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """The extra must be installed."""
        if importlib.util.find_spec("reasoning_gym") is None:
            yield (
                check.path,
                'reasoning-gym is not installed; run: pip install "plugrl[reasoning-gym]"',
            )

    @classmethod
    def columns(
        cls, section: Mapping[str, Any], data: Mapping[str, Any], path: str, *, is_val: bool
    ) -> Mapping[str, str]:
        """The column that the scenario writes."""
        return {path: _COLUMN}

    async def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Ask the task in a helper process.

        Raises:
            KeyError: the problem is none of reasoning-gym.
            LimitExceededError: scoring took too long.
            CallFailedError: the task raised.
        """
        problem = data[_COLUMN]
        entry, answer = problem["entry"], self._extract(evaluation_target.final_answer)
        score = 0.0
        if answer is not None:
            arguments = (problem["task"], problem["config"], answer, entry)
            score = await self._score(*arguments)
        return EvaluationRunResult(
            reward=score,
            ground_truth=str(entry.get("answer", "")),
            metrics={
                "score": score,
                "solved": float(score >= 1.0),
                "extracted": float(answer is not None),
            },
            extra_info={} if answer is None else {"extracted": answer},
        )

    def _extract(self, text: str) -> str | None:
        tag = self.config.tag
        if tag is not None:
            before, end, _ = text.rpartition(f"</{tag}>")
            _, start, text = before.rpartition(f"<{tag}>")
            if not end or not start:
                return None
        return text.strip()
