"""The arithmetic scenario and the exact-match evaluator."""

import inspect

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationFailedError,
    EvaluationRunResult,
    Evaluator,
    evaluate,
)
from plugrl.scenarios.arithmetic.scenario import ArithmeticScenario
from plugrl.scenarios.evaluators.exact_match import ExactMatchEvaluator

HELD_OUT = ("validation", "development")


def numbers(item):
    a, b = item["prompt"].removesuffix("=").split("+")
    return int(a), int(b)


def unordered(items):
    return {tuple(sorted(numbers(item))) for item in items}


@pytest.mark.parametrize("seed", [0, 7])
def test_no_held_out_problem_nor_its_mirror_is_trained_on(seed):
    built = ArithmeticScenario({}).build(seed)
    held = [unordered(built.dataset(name)) for name in HELD_OUT]
    trained = unordered(built.dataset("train")) | unordered(built.dataset("demonstrations"))
    assert not held[0] & held[1]
    assert not (held[0] | held[1]) & trained
    assert len(held[0] | held[1] | trained) == 90 * 91 // 2
    texts = [item["prompt"] for data in built.datasets.values() for item in data]
    assert len(texts) == len(set(texts))


def test_sizes_are_as_configured_and_the_rest_is_for_training():
    built = ArithmeticScenario({"validation": 20, "development": 10, "train": 33}).build(0)
    assert {name: len(data) for name, data in built.datasets.items()} == {
        "validation": 20, "development": 10, "demonstrations": 1000, "train": 33
    }  # fmt: skip
    # 10 times 10 sums of one digit, less 40 demonstrations.
    small = {"digits": 1, "validation": 0, "development": 0, "demonstrations": 40}
    assert len(ArithmeticScenario(small).build(0).dataset("train")) == 60


def test_held_out_problems_do_not_depend_on_the_seed_and_the_others_do():
    first, second = (ArithmeticScenario({}).build(seed) for seed in (0, 1))
    for name in HELD_OUT:
        assert first.dataset(name) == second.dataset(name)
    for name in ("train", "demonstrations"):
        assert first.dataset(name) != second.dataset(name)
        assert first.dataset(name) == ArithmeticScenario({}).build(0).dataset(name)


def test_answers_are_sums_with_leading_zeros():
    for item in ArithmeticScenario({}).build(0).dataset("validation"):
        assert len(item["prompt"]) == 6
        assert len(item["answer"]) == 3
        assert int(item["answer"]) == sum(numbers(item))


def test_pairs_have_the_right_answer_and_one_with_a_digit_that_is_off():
    plain, pairs = (ArithmeticScenario({"pairs": wanted}).build(0) for wanted in (False, True))
    off = {1, 10, 100}
    for split, items in pairs.datasets.items():
        for item, known in zip(items, plain.dataset(split), strict=True):
            assert item == {**known, "chosen": known["answer"], "rejected": item["rejected"]}
            assert len(item["rejected"]) == len(item["chosen"])
            assert abs(int(item["rejected"]) - int(item["chosen"])) in off
    # The same for every seed of a run.
    held = ArithmeticScenario({"pairs": True}).build(3).dataset("validation")
    assert held == pairs.dataset("validation")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"digits": 5}, "digits: must be at most 4"),
        ({"validation": -1}, "validation: must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(config, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ArithmeticScenario(config)


def test_more_problems_than_there_are_is_an_error_with_the_numbers():
    scenario = ArithmeticScenario(
        {"digits": 1, "validation": 30, "development": 20, "demonstrations": 6}
    )
    with pytest.raises(ConfigError, match="50 held-out problems and 6 .* more than the 55 pairs"):
        scenario.build(0)


def test_an_unknown_split_names_those_there_are():
    with pytest.raises(ConfigError, match="no split 'test'; it has: demonstrations, development"):
        ArithmeticScenario({}).build(0).dataset("test")


@pytest.mark.parametrize(
    ("config", "answer", "reward"),
    [
        ({}, "Ab", 1.0),
        ({}, " Ab\n", 1.0),
        ({}, "ab", 0.0),
        ({}, "Abc", 0.0),
        ({}, "", 0.0),
        ({"strip": False}, " Ab", 0.0),
        ({"ignore_case": True}, "aB", 1.0),
    ],
)
def test_exact_match(config, answer, reward):
    judged = ExactMatchEvaluator(config).evaluate({"answer": "Ab"}, BaseEvaluationTarget(answer))
    assert judged.reward == reward
    assert judged.metrics == {"exact_match": reward}
    assert judged.ground_truth == "Ab"


def test_exact_match_reads_the_configured_column_and_needs_it():
    evaluator = ExactMatchEvaluator({"answer_key": "solution"})
    assert evaluate(evaluator, {"solution": 7}, BaseEvaluationTarget("7")).reward == 1.0
    with pytest.raises(
        EvaluationFailedError, match="ExactMatchEvaluator raised KeyError.*solution"
    ):
        evaluate(evaluator, {"answer": 7}, BaseEvaluationTarget("7"))


def raising():
    raise ZeroDivisionError("no units")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (raising, "Judge raised ZeroDivisionError: no units"),
        (lambda: 1.0, "Judge returned float; an EvaluationRunResult"),
        (lambda: EvaluationRunResult(float("nan")), "Judge returned reward nan"),
        (lambda: EvaluationRunResult("good"), "Judge returned reward of type str"),
        (lambda: EvaluationRunResult(1.0, metrics={"x": float("inf")}), "returned metric 'x' inf"),
        (lambda: EvaluationRunResult(1.0, metrics={"x": "good"}), "metric 'x' of type str; a num"),
        (lambda: EvaluationRunResult(1.0, metrics=[1.0]), "metrics of type list; a dict of num"),
        (lambda: EvaluationRunResult(None), "reward of type NoneType"),
    ],
)
def test_what_is_no_judgement_is_a_named_failure(answer, complaint):
    class Judge(Evaluator):
        def evaluate(self, data, evaluation_target):
            return answer()

    with pytest.raises(EvaluationFailedError, match=complaint) as caught:
        evaluate(Judge(), {}, BaseEvaluationTarget("x"))
    code = raising if answer is raising else Judge.evaluate
    line = inspect.getsourcelines(code)[1] + (answer is raising)
    assert str(caught.value).endswith(f" (tests/scenarios/test_arithmetic.py:{line})")
