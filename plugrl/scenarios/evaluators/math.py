"""Mathematics: an answer is right when math-verify finds it equal to the reference."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult
from plugrl.core.time_limited_pool import LimitExceededError, shared_pool
from plugrl.scenarios.evaluators.references import ReferenceEvaluator

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

_GRADER = "plugrl.scenarios.evaluators.math_grading:grade"


@dataclass
class MathConfig:
    """Options of the evaluator ``math``."""

    answer_key: str | None = described(
        None, "column with the reference answer; null: that of data.answer_key"
    )
    boxed: Literal["prefer", "require", "ignore"] = described(
        "prefer",
        "the last \\boxed{...} of an answer: is judged if there is one, must be there, or is "
        "judged like the rest of the text",
    )
    correct_reward: float = described(1.0, "reward of a right answer", at_least=-1e6, at_most=1e6)
    format_reward: float = described(
        0.0, "reward of a wrong answer in which something is found", at_least=-1e6, at_most=1e6
    )
    wrong_reward: float = described(
        0.0, "reward of an answer in which nothing is found", at_least=-1e6, at_most=1e6
    )
    digits: int = described(
        6, "decimal places by which numbers are compared", at_least=1, at_most=1000
    )
    time_limit: float = described(
        5.0, "seconds of processor time for one answer", above=0, at_most=1e8
    )
    on_timeout: Literal["invalid", "wrong"] = described(
        "invalid", "what an answer is that takes longer: invalid, or wrong"
    )
    tail: int = described(
        20_000, "only this many last characters of an answer are read", at_least=1, at_most=10**9
    )


class MathEvaluator(ReferenceEvaluator):
    """Reward for an answer that means the same as the reference, by math-verify.

    Metrics: ``correct``, ``extracted``: whether something is found, ``boxed``: whether the answer
    has a ``\\boxed{...}``, and ``timeout`` where those are wrong. Judging runs in helper processes
    that are ended when they take too long.
    """

    Config: ClassVar[type] = MathConfig
    metric_names: ClassVar[Collection[str]] = ("correct", "extracted", "boxed", "timeout")
    conformance: ClassVar[dict[str, Any]] = {
        "data": {"prompt": "x", "answer": r"\frac{1}{2}"},
        "right": r"It is $\boxed{0.5}$.",
        "wrong": r"It is $\boxed{2}$.",
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._grade = shared_pool(_GRADER, self.config.time_limit)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """The extra must be installed."""
        if importlib.util.find_spec("math_verify") is None:
            yield check.path, 'math-verify is not installed; run: pip install "plugrl[math]"'

    async def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Let a helper process parse and compare both.

        Raises:
            KeyError: the problem has no reference answer.
            LimitExceededError: it took too long, and ``on_timeout`` is ``invalid``.
            CallFailedError: the reference cannot be read, or the helper failed.
        """
        config = self.config
        truth = self.reference(data)
        answer = evaluation_target.final_answer[-config.tail :]
        try:
            found = await self._grade(answer, truth, config.boxed, config.digits)
        except LimitExceededError:
            if config.on_timeout == "invalid":
                raise
            return EvaluationRunResult(
                config.wrong_reward,
                truth,
                {"correct": 0.0, "extracted": 0.0, "timeout": 1.0},
            )
        correct, extracted = found["correct"], found["extracted"]
        reward = config.correct_reward if correct else config.format_reward
        metrics = {
            "correct": float(correct),
            "extracted": float(extracted is not None),
            "boxed": float(found["boxed"]),
        }
        if config.on_timeout == "wrong":
            metrics["timeout"] = 0.0
        return EvaluationRunResult(
            reward=config.wrong_reward if extracted is None else reward,
            ground_truth=truth,
            metrics=metrics,
            extra_info={} if extracted is None else {"extracted": extracted},
        )
