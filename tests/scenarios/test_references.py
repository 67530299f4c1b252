"""A problem without a reference answer is judged by nobody: no answer is right or wrong there."""

import json
import re

import pytest

from plugrl.core.component import build
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    evaluate,
)
from plugrl.scenarios.evaluators.exact_match import ExactMatchEvaluator
from plugrl.scenarios.evaluators.llm_judge import LlmJudgeEvaluator
from plugrl.scenarios.evaluators.math import MathEvaluator
from plugrl.scenarios.evaluators.regex import RegexEvaluator
from plugrl.testing import tiny
from plugrl.testing.suite.test_evaluator import judge

EMPTY = [(None, "NoneType"), ({"ground_truth": "2"}, "dict"), (["2"], "list"), ([], "list")]


@pytest.mark.parametrize(("reference", "kind"), EMPTY)
@pytest.mark.parametrize("judge", [ExactMatchEvaluator, RegexEvaluator, MathEvaluator])
def test_what_is_no_reference_makes_the_attempt_invalid(judge, reference, kind):
    answer = BaseEvaluationTarget(str(reference))
    with pytest.raises(
        EvaluationFailedError, match=f"found no reference answer: column 'answer' holds {kind}"
    ):
        evaluate(build(judge, {}), {"answer": reference}, answer)


@pytest.mark.parametrize(("reference", "kind"), EMPTY)
def test_a_model_is_not_asked_about_what_is_no_reference(reference, kind):
    evaluator = build(LlmJudgeEvaluator, {"chat": False, "template": "{answer} {reference}"})
    problem = {"prompt": "1+1=", "answer": reference}
    with pytest.raises(
        EvaluationFailedError, match=f"found no reference answer: column 'answer' holds {kind}"
    ):
        judge(evaluator, {"reply": lambda prompt: "Score: 1"}, problem, "2")


def test_a_reference_that_is_a_number_is_compared_as_text():
    answer = BaseEvaluationTarget("2")
    assert evaluate(build(ExactMatchEvaluator, {}), {"answer": 2}, answer).reward == 1.0


def test_a_reference_that_is_a_message_is_what_it_says():
    said = [{"role": "assistant", "content": "2"}]
    for kind in (ExactMatchEvaluator, MathEvaluator):
        answer = BaseEvaluationTarget("2")
        assert evaluate(build(kind, {}), {"answer": said}, answer).reward == 1.0


def test_references_that_are_none_are_named_before_a_run(tmp_path):
    tree = tiny.config("self_hosted_grpo", tmp_path)
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"prompt": "a", "answer": ["a", "b"]}) + "\n")
    tree["data"]["data_files"] = [str(path)]
    fault = f": column 'answer' of data file {path} holds list, no answer: "
    with pytest.raises(ConfigError, match=re.escape(fault)):
        prepare(tree)
