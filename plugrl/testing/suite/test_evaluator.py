"""The contract of evaluators.

Run it with ``--plugrl-evaluator NAME``, or subclass :class:`EvaluatorContract` with an attribute
``plugrl_evaluator``. An evaluator gives as ``conformance``: ``config`` (its
section), ``data`` (one problem), and ``right`` and ``wrong`` (an answer of each sort); by
default ``{"data": {"prompt": "1+1=", "answer": "2"}, "right": "2", "wrong": "3"}``. An evaluator
that raises on answers that it cannot judge gives the reason as ``refuses``; such answers are not
trained on. An evaluator that queries a model gives ``reply``, a function from prompt to answer.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from plugrl.core.factory import Factory
from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.evaluate.evaluator import (
    MODEL_ACCESS,
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    evaluate_async,
    works_on_batches,
)
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.rollout.judge import judge_batch, make_evaluator
from plugrl.core.text.rollout.task import Judgement
from plugrl.core.text.rollout.time_limits import run_coroutine
from plugrl.testing.contract import ComponentContract
from plugrl.testing.hostile import HOSTILE
from plugrl.testing.scripts import EveryName, Letters


class _Script:
    """Models of any name whose answers come from a function."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self._reply = reply
        self._tokenizer = Letters()
        self.tokenizers: Mapping[str, Tokenizer] = EveryName(self._tokenizer)

    async def ask(
        self, model: str, tokens: Sequence[int], sampling: SamplingParams | None = None, /
    ) -> Completion:
        answer = self._tokenizer.encode(self._reply(self._tokenizer.decode(tokens)))
        return Completion(answer, [-1.0] * len(answer), "stop", 0)


def judge(
    evaluator: Evaluator, example: Mapping[str, Any], data: Mapping[str, Any], answer: str
) -> EvaluationRunResult:
    """The judgement of ``evaluator`` on ``answer``, called the way a rollout worker calls it."""

    async def ask() -> EvaluationRunResult:
        MODEL_ACCESS.set(_Script(example["reply"]) if example["reply"] else None)
        return await evaluate_async(evaluator, data, BaseEvaluationTarget(answer))

    return run_coroutine(ask())


class EvaluatorContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_evaluator``."""

    kind = "evaluator"
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"prompt": "1+1=", "answer": "2"},
        "right": "2",
        "wrong": "3",
        "refuses": None,
        "reply": None,
    }

    @pytest.fixture
    def evaluator(self, record: Record, section: Any) -> Evaluator:
        return make_evaluator(
            Factory(default_registry(), {"evaluator": record}),
            section,
            "evaluator",
            reference_key="answer",
            prompt_key="prompt",
        )

    def test_a_right_answer_beats_a_wrong_one(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        right, wrong = (
            judge(evaluator, example, example["data"], example[which]).reward
            for which in ("right", "wrong")
        )
        assert right > wrong

    @pytest.mark.parametrize("answer", HOSTILE)
    def test_any_answer_gets_a_finite_reward(
        self, evaluator: Evaluator, example: dict[str, Any], answer: str
    ) -> None:
        try:
            result = judge(evaluator, example, example["data"], answer)
        except EvaluationFailedError:
            if not example["refuses"]:
                raise
            pytest.skip(f"refused: {example['refuses']}")
        assert math.isfinite(result.reward)
        assert all(math.isfinite(value) for value in result.metrics.values())

    def test_equal_answers_get_equal_rewards(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        first = judge(evaluator, example, example["data"], example["right"])
        assert judge(evaluator, example, example["data"], example["right"]) == first

    def test_a_batch_is_judged_like_its_answers(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        if not works_on_batches(evaluator):
            pytest.skip("it judges one answer at a time")
        answers = [example["right"], example["wrong"], "", example["right"]]
        entries = [Judgement((example["data"], BaseEvaluationTarget(a))) for a in answers]
        run_coroutine(judge_batch(evaluator, entries))
        for entry, answer in zip(entries, answers, strict=True):
            try:
                assert entry.outcome == judge(evaluator, example, example["data"], answer)
            except EvaluationFailedError:
                assert isinstance(entry.outcome, EvaluationFailedError)

    def test_it_leaves_the_problem_as_it_was(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        # Called directly, because runs give evaluators copies.
        data, target = copy.deepcopy(example["data"]), BaseEvaluationTarget(example["right"])
        by_item = type(evaluator).evaluate is not Evaluator.evaluate

        async def ask() -> None:
            MODEL_ACCESS.set(_Script(example["reply"]) if example["reply"] else None)
            told: Any = (
                evaluator.evaluate(data, target)
                if by_item
                else evaluator.evaluate_batch([(data, target)])
            )
            if inspect.isawaitable(told):
                await told

        run_coroutine(ask())
        assert data == example["data"]


class TestEvaluator(EvaluatorContract):
    """The contract for every ``--plugrl-evaluator``."""

    __test__ = True
