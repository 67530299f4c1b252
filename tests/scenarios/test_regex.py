"""The evaluator ``regex``: what it extracts, how it compares, and patterns without an end."""

import time
from fractions import Fraction

import pytest

from plugrl.core.component import build
from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    evaluate,
)
from plugrl.scenarios.evaluators.llm_judge import LlmJudgeEvaluator
from plugrl.scenarios.evaluators.numbers import parse_number
from plugrl.scenarios.evaluators.patterns import repeats
from plugrl.scenarios.evaluators.regex import RegexEvaluator


def judged(answer, reference="2", **options):
    evaluator = build(RegexEvaluator, options)
    return evaluate(evaluator, {"answer": reference}, BaseEvaluationTarget(answer))


@pytest.mark.parametrize(
    ("options", "answer", "reference", "reward"),
    [
        ({}, "<answer>1</answer> <answer> 2\n</answer>", "2", 1.0),
        ({"match": "first"}, "<answer>1</answer> <answer>2</answer>", "2", 0.0),
        ({"match": "first"}, "<answer>2</answer> <answer>1</answer>", "2", 1.0),
        ({}, "2", "2", 0.0),
        ({"wrong_reward": -1.0}, "2", "2", -1.0),
        ({"format_reward": 0.1}, "<answer>3</answer>", "2", 0.1),
        ({"dotall": False}, "<answer>2\n</answer>", "2", 0.0),
        ({"pattern": r"\d+"}, "first 1, then 2", "2", 1.0),
        ({"pattern": r"(?P<x>\d)(\d)", "group": "x"}, "21", "2", 1.0),
        ({"pattern": r"(\d)(\d)", "group": 2}, "12", "2", 1.0),
        ({"pattern": r"a(b)?"}, "a", "b", 0.0),
        ({"pattern": r"^(yes|no)$", "multiline": True}, "so\nYES\nend", "yes", 0.0),
        (
            {"pattern": r"^(yes|no)$", "multiline": True, "ignore_case": True},
            "so\nYES\nend",
            "yes",
            1.0,
        ),
        ({"strip": False}, "<answer> 2</answer>", "2", 0.0),
        ({"reference_pattern": r"#### (.*)"}, "<answer>2</answer>", "1 + 1\n#### 2", 1.0),
        ({"compare": "number"}, "<answer>$2.0000001</answer>", "2", 1.0),
        ({"compare": "number"}, "<answer>2.001</answer>", "2", 0.0),
        ({"compare": "number", "tolerance": 0.01}, "<answer>2.001</answer>", "2", 1.0),
        ({"compare": "number", "tolerance": 0.0}, "<answer>1/3</answer>", "2/6", 1.0),
        ({"compare": "number", "tolerance": 0.0}, "<answer>0.1</answer>", "1/10", 1.0),
        (
            {"compare": "number", "tolerance": 0.0, "relative_tolerance": 0.01},
            "<answer>1,010</answer>",
            "1000",
            1.0,
        ),
        ({"compare": "number"}, "<answer>two</answer>", "2", 0.0),
    ],
)
def test_rewards(options, answer, reference, reward):
    assert judged(answer, reference, **options).reward == reward


def test_metrics_tell_format_from_truth():
    assert judged("<answer>3</answer>").metrics == {"correct": 0.0, "extracted": 1.0}
    assert judged("3").metrics == {"correct": 0.0, "extracted": 0.0}
    assert judged("<answer>2</answer>").extra_info == {"extracted": "2"}


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        (r"(x+x+)+y", "x" * 5000),
        pytest.param(r"<answer>(.*?)</answer>", "<answer>" * 40000, marks=pytest.mark.integration),
        pytest.param(r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 3000, marks=pytest.mark.integration),
    ],
)
def test_a_catastrophic_pattern_is_ended_and_gives_no_reward(pattern, answer):
    started = time.process_time()
    with pytest.raises(EvaluationFailedError, match=r"TimeoutError: pattern .* 0\.2 seconds"):
        judged(answer, pattern=pattern, time_limit=0.2)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("reference", "options", "says"),
    [
        ("two", {"compare": "number"}, "'two' is no number"),
        ("x", {"reference_pattern": "#### (.*)"}, "does not match reference_pattern"),
    ],
)
def test_a_reference_that_is_none_is_a_failure_and_no_wrong_answer(reference, options, says):
    with pytest.raises(EvaluationFailedError, match=says):
        judged("<answer>2</answer>", reference, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pattern": "("}, "^pattern: is no regular expression"),
        ({"reference_pattern": "["}, "reference_pattern: is no regular expression"),
        ({"group": 2}, "group 2 is none of the pattern's; it has: 0, 1"),
        ({"group": "x"}, "group 'x' is none"),
        ({"time_limit": 0.0}, "time_limit: must be above 0"),
        ({"tolerance": -1.0}, "tolerance: must be at least 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        configure(RegexEvaluator, options)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234.50", Fraction(2469, 2)),
        ("-3/4", Fraction(-3, 4)),
        ("2e3", 2000),
        ("50 %", Fraction(1, 2)),
        ("\N{MINUS SIGN}5.", -5),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1/0", None),
        ("1,23", None),
        ("", None),
        ("-", None),
        ("e5", None),
        ("1e9999999", None),
        ("9" * 500, None),
        ("0x10", None),
        ("\N{ARABIC-INDIC DIGIT FIVE}", None),
    ],
)
def test_numbers_as_people_write_them(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("a{10}", 10),
        ("(a{10}){10}", 100),
        (r"[({]{3}\({5}", 8),
        ("[]a]{2}(b{2,}){,9}", 4),
        ("((a{1000}){1000}){1000}", 10**9),
    ],
)
def test_parts_of_a_pattern(pattern, parts):
    assert repeats(pattern) == parts


@pytest.mark.parametrize("evaluator", [RegexEvaluator, LlmJudgeEvaluator])
def test_a_pattern_that_would_never_be_compiled_is_refused(evaluator):
    with pytest.raises(ConfigError, match="pattern has counts like"):
        configure(evaluator, {"pattern": "(((a{1000}){1000}){1000})"})
