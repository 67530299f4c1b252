"""What an evaluator may answer, and what makes an attempt invalid."""

import math

import pytest

from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    evaluate,
)


def judged(answer):
    class Judge(Evaluator):
        def evaluate(self, data, evaluation_target):
            return answer()

    return evaluate(Judge(), {}, BaseEvaluationTarget("x"))


def leave():
    raise SystemExit(3)


def fail():
    raise LookupError("gone")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (fail, "Judge raised LookupError: gone"),
        (leave, "Judge raised SystemExit: 3"),
        (lambda: 1.0, "returned float; an EvaluationRunResult"),
        (lambda: None, "returned NoneType"),
        (lambda: EvaluationRunResult(math.nan), "returned reward nan"),
        (lambda: EvaluationRunResult(math.inf), "returned reward inf"),
        (lambda: EvaluationRunResult("high"), "reward of type str"),
        (
            lambda: EvaluationRunResult(1.0, metrics={"length": None}),
            "metric 'length' of type NoneType",
        ),
        (lambda: EvaluationRunResult(1.0, metrics={"length": math.nan}), "metric 'length' nan"),
    ],
)
def test_what_is_no_judgement_is_named(answer, complaint):
    with pytest.raises(EvaluationFailedError, match=complaint):
        judged(answer)


def test_numbers_become_floats():
    result = judged(lambda: EvaluationRunResult(True, metrics={"length": 3}))
    assert (result.reward, result.metrics) == (1.0, {"length": 3.0})


def test_ctrl_c_is_no_failure_of_an_evaluator():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(interrupt)
