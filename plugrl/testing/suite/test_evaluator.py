"""What plugrl expects of an evaluator.

Run it with ``--plugrl-evaluator NAME``, or subclass :class:`EvaluatorContract` with an attribute
``plugrl_evaluator``. An evaluator declares what it needs as ``conformance``: ``config`` (its
section), ``data`` (one problem), and ``right`` and ``wrong`` (an answer of each sort); by
default ``{"data": {"prompt": "1+1=", "answer": "2"}, "right": "2", "wrong": "3"}``. One that
raises on answers which it cannot judge says why as ``refuses``; such answers train nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest

from plugrl.core.component import build
from plugrl.core.config.view import configure
from plugrl.core.errors import ConfigError
from plugrl.core.kinds import Record
from plugrl.core.registry import default_registry
from plugrl.core.text.evaluation import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    Evaluator,
    evaluate,
)
from plugrl.testing.processes import location, resolved_elsewhere

DEFAULT: Mapping[str, Any] = {
    "config": {},
    "data": {"prompt": "1+1=", "answer": "2"},
    "right": "2",
    "wrong": "3",
    "refuses": None,
}
HOSTILE = (
    "",
    " ",
    "\x00",
    "\n" * 100,
    "x" * 100_000,
    "((((",
    "</answer><answer>",
    "é漢字🙂",
    "NaN",
)


class EvaluatorContract:
    """The tests; they need the fixture or attribute ``plugrl_evaluator``."""

    __test__ = False

    @pytest.fixture
    def record(self, plugrl_evaluator: str) -> Record:
        return default_registry().resolve("evaluator", plugrl_evaluator)

    @pytest.fixture
    def cls(self, record: Record) -> type[Evaluator]:
        found: type[Evaluator] = default_registry().load(record)
        return found

    @pytest.fixture
    def example(self, cls: type[Evaluator]) -> dict[str, Any]:
        return copy.deepcopy({**DEFAULT, **getattr(cls, "conformance", {})})

    @pytest.fixture
    def evaluator(self, cls: type[Evaluator], example: dict[str, Any]) -> Evaluator:
        built: Evaluator = build(cls, example["config"])
        return built

    def test_metadata_names_it(self, record: Record) -> None:
        assert record.distribution, f"{record.name} comes from no installed package"
        assert record.version

    def test_a_new_process_finds_the_same_class(self, record: Record, cls: type[Evaluator]) -> None:
        assert resolved_elsewhere(record) == location(cls)

    def test_it_is_a_documented_evaluator(self, cls: type[Evaluator]) -> None:
        assert issubclass(cls, Evaluator)
        assert (cls.__doc__ or "").strip(), f"{cls.__name__} has no docstring"

    def test_an_unknown_key_is_refused(self, cls: type[Evaluator], example: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="no_such_key_anywhere"):
            configure(cls, {**example["config"], "no_such_key_anywhere": 1})

    def test_a_right_answer_beats_a_wrong_one(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        right, wrong = (
            evaluate(evaluator, example["data"], BaseEvaluationTarget(example[which])).reward
            for which in ("right", "wrong")
        )
        assert right > wrong

    @pytest.mark.parametrize("answer", HOSTILE)
    def test_any_answer_gets_a_finite_reward(
        self, evaluator: Evaluator, example: dict[str, Any], answer: str
    ) -> None:
        try:
            result = evaluate(evaluator, example["data"], BaseEvaluationTarget(answer))
        except EvaluationFailedError:
            if not example["refuses"]:
                raise
            pytest.skip(f"refused: {example['refuses']}")
        assert math.isfinite(result.reward)
        assert all(math.isfinite(value) for value in result.metrics.values())

    def test_equal_answers_get_equal_rewards(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        target = BaseEvaluationTarget(example["right"])
        first = evaluate(evaluator, example["data"], target)
        assert evaluate(evaluator, example["data"], target) == first

    def test_it_leaves_the_problem_as_it_was(
        self, evaluator: Evaluator, example: dict[str, Any]
    ) -> None:
        data = dict(example["data"])
        evaluate(evaluator, data, BaseEvaluationTarget(example["right"]))
        assert data == example["data"]


class TestEvaluator(EvaluatorContract):
    """The contract for every ``--plugrl-evaluator``."""

    __test__ = True
