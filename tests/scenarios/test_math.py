r"""The evaluator ``math``: equality of expressions, boxes, rewards, and a limit that holds."""

import threading
import time

import pytest
from waiting import DEADLINE

from plugrl.core.component import build
from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    evaluate,
)
from plugrl.scenarios.evaluators.math import MathEvaluator
from plugrl.scenarios.evaluators.math_grading import last_boxed


def judged(answer, reference, **options):
    evaluator = build(MathEvaluator, options)
    return evaluate(evaluator, {"answer": reference}, BaseEvaluationTarget(answer))


@pytest.mark.parametrize(
    ("answer", "reference", "correct"),
    [
        (r"\boxed{0.5}", r"\frac{1}{2}", True),
        (r"\boxed{\frac{2}{4}}", "1/2", True),
        ("so the answer is 42", "42", True),
        ("so the answer is 43", "42", False),
        (r"It is $x=3$.", "3", True),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", True),
        (r"\boxed{x^2+2x}", "(x+1)^2", False),
        (r"\boxed{(1,2)}", "(1,2)", True),
        (r"\boxed{(2,1)}", "(1,2)", False),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", True),
        ("1,234", "1234", True),
        (r"first \boxed{1}, then \boxed{2}", "2", True),
        (r"first \boxed{2}, then \boxed{1}", "2", False),
        (r"\boxed{2} and 7", "$2$", True),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True),
    ],
)
def test_equal_in_value(answer, reference, correct):
    result = judged(answer, reference)
    assert (result.reward, result.metrics["correct"]) == (correct, correct)


# References as data sets hold them, most of them LaTeX without dollars.
REFERENCES = [
    r"2\pi", "x^2+1", "10^{5}", r"\frac{1}{2}", r"\dfrac{3}{5}", r"\frac12", r"\sqrt{2}", "3", "-5",
    "0.5", "1/2", "1,000", r"50\%", "x+1", "2x", "(1,2)", "[0,1)", r"\{1,2\}", r"(-\infty, 3]",
    r"\text{yes}", "A", "Monday", "x=3", "y = 2x+1", r"x \ge 2", r"\infty", r"3\sqrt{2}", "e^{2}",
    r"\log 2", r"\binom{5}{2}", r"1.5\times 10^{3}", r"\begin{pmatrix}1\\2\end{pmatrix}", "1 + 2i",
    "5!", "|x|", r"7 \frac{1}{2}", "12 apples",
]  # fmt: skip


@pytest.mark.parametrize("boxed", ["prefer", "ignore"])
def test_an_answer_that_is_the_reference_is_right(boxed):
    wrong = [r for r in REFERENCES if judged(f" {r}\n", r, boxed=boxed).reward != 1.0]
    assert wrong == []


@pytest.mark.parametrize(
    ("answer", "reference", "correct"),
    [
        (r"2 \pi", r"2\pi", True),
        ("1+x^2", "x^2+1", True),
        ("10^5", "10^{5}", True),
        (r"\frac12", "0.5", True),
        (r"2\pi.", r"2\pi", True),
        (r"\(2\pi\)", r"2\pi", True),
        (r"\log 2", r"\log(2)", True),
        # What stands within an expression is not the answer.
        (r"3\sqrt{2}", "3", False),
        (r"1\frac{1}{2}", "1/2", False),
        (r"2\pi", "2", False),
        ("2", r"2\pi", False),
        # Text with words has dollars or a box where it has more than numbers.
        ("12 apples", "12", True),
        (r"the area is $2\pi$", r"2\pi", True),
    ],
)
def test_a_lone_expression_is_read_whole(answer, reference, correct):
    assert judged(answer, reference).reward == correct


def test_rewards_for_format_and_the_box():
    options = {"boxed": "require", "format_reward": 0.1, "wrong_reward": -0.5}
    assert judged(r"\boxed{2}", "2", **options).reward == 1.0
    assert judged(r"\boxed{3}", "2", **options).reward == 0.1
    unboxed = judged("2", "2", **options)
    assert unboxed.reward == -0.5
    assert unboxed.metrics == {"correct": 0.0, "extracted": 0.0, "boxed": 0.0}
    assert judged(r"\boxed{}", "2", **options).reward == -0.5
    assert judged(r"\boxed{3}, no: 2", "2", boxed="ignore").metrics["boxed"] == 1.0
    assert judged(r"\boxed{2}", "2").extra_info == {"extracted": "2"}


def test_only_the_tail_of_an_answer_is_read():
    options = {"boxed": "require", "tail": 20}
    assert judged("x" * 50 + r"\boxed{2}", "2", **options).reward == 1.0
    # The box has nine characters.
    assert judged(r"\boxed{2}" + "x" * 19, "2", **options).metrics["extracted"] == 0.0
    assert judged(r"\boxed{2}" + "x" * 11, "2", **options).metrics["correct"] == 1.0
    assert judged(r"\boxed{2}" + "x" * 12, "2", **options).metrics["extracted"] == 0.0
    # By default a long line of thought before the answer does no harm.
    assert judged("x" * 30_000 + r"\boxed{2}", "2").reward == 1.0
    assert judged(r"\boxed{2}" + "x" * 20_000, "2").metrics["boxed"] == 0.0


def test_a_reference_that_cannot_be_read_is_a_failure_and_no_wrong_answer():
    with pytest.raises(EvaluationFailedError, match="nothing can be read in the reference ''"):
        judged("2", "")


HARD = r"$9^{9^{9^{9}}}$"


def test_an_endless_comparison_is_interrupted_in_any_thread():
    failures = []

    def attempt():
        try:
            judged(HARD, "2", time_limit=0.2)
        except EvaluationFailedError as error:
            failures.append(str(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(DEADLINE)
    assert len(failures) == 1
    assert "more than 0.2 seconds of processor time" in failures[0]
    assert judged("2", "2", time_limit=0.2).reward == 1.0


def test_a_timeout_can_count_as_wrong():
    options = {"time_limit": 0.2, "on_timeout": "wrong", "wrong_reward": -1.0}
    result = judged(HARD, "2", **options)
    assert (result.reward, result.metrics["timeout"]) == (-1.0, 1.0)
    assert judged("2", "2", **options).metrics["timeout"] == 0.0


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{a{b}c} d", "a{b}c"),
        (r"\boxed{1} \boxed{2", "1"),
        (r"\fbox{3}", "3"),
        (r"\boxed{", None),
        ("none", None),
    ],
)
def test_the_last_whole_box(text, inside):
    assert last_boxed(text) == inside


def test_boxes_without_end_are_looked_through_once():
    before = time.process_time()
    assert last_boxed(r"\boxed{" * 10_000) is None
    assert time.process_time() - before < 1


def test_options_that_cannot_be_meant_are_refused():
    with pytest.raises(ConfigError, match="time_limit: must be above 0"):
        configure(MathEvaluator, {"time_limit": 0})
    for name in ("digits", "tail"):
        with pytest.raises(ConfigError, match=f"{name}: must be at least 1"):
            configure(MathEvaluator, {name: 0})
