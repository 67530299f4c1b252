"""The arithmetic problems and the exact-match evaluator."""

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.evaluation import BaseEvaluationTarget
from plugrl.scenarios.arithmetic.scenario import ArithmeticScenario
from plugrl.scenarios.evaluators.exact_match import ExactMatchEvaluator

SPLITS = ("validation", "development", "demonstrations", "train")


def built(seed=0, **options):
    return ArithmeticScenario(options).build(seed).datasets


def pairs(items):
    return {frozenset(map(int, item["prompt"].rstrip("=").split("+"))) for item in items}


def test_answers_are_right_and_padded():
    for split in SPLITS:
        for item in built()[split]:
            a, b = map(int, item["prompt"].rstrip("=").split("+"))
            assert 10 <= a <= 99
            assert 10 <= b <= 99
            assert item["answer"] == str(a + b).zfill(3)


def test_held_out_problems_and_their_mirrors_are_never_trained():
    for seed in range(3):
        splits = built(seed)
        held = pairs(splits["validation"]) | pairs(splits["development"])
        assert not held & (pairs(splits["demonstrations"]) | pairs(splits["train"]))
        assert not pairs(splits["validation"]) & pairs(splits["development"])


def test_demonstrations_and_training_problems_are_apart():
    splits = built()
    shown = {item["prompt"] for item in splits["demonstrations"]}
    assert not shown & {item["prompt"] for item in splits["train"]}


def test_sizes():
    splits = built()
    # 90 * 91 / 2 = 4095 pairs, 512 of them held out; the other 3583 give 7166 ordered problems
    # less the doubles among them, which are their own mirror.
    assert [len(splits[s]) for s in SPLITS[:3]] == [256, 256, 1000]
    doubles = sum(len(pair) == 1 for pair in pairs(splits["train"] + splits["demonstrations"]))
    assert len(splits["train"]) == 2 * 3583 - doubles - 1000
    assert len(built(train=10)["train"]) == 10


def test_only_the_training_splits_depend_on_the_seed():
    one, other = built(0), built(1)
    assert one["validation"] == other["validation"]
    assert one["development"] == other["development"]
    assert one["train"] != other["train"]
    assert built(0) == one


@pytest.mark.parametrize("options", [{"digits": 0}, {"digits": 9}, {"validation": -1}])
def test_sizes_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError):
        built(**options)


def test_more_problems_than_there_are():
    with pytest.raises(ConfigError, match="more than the 55 pairs of 1-digit numbers"):
        built(digits=1)


@pytest.mark.parametrize(
    ("answer", "options", "reward"),
    [
        ("046", {}, 1.0),
        (" 046\n", {}, 1.0),
        (" 046", {"strip": False}, 0.0),
        ("46", {}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_exact_match(answer, options, reward):
    result = ExactMatchEvaluator(options).evaluate({"answer": "046"}, BaseEvaluationTarget(answer))
    assert (result.reward, result.ground_truth) == (reward, "046")
    assert result.metrics == {"exact_match": reward}


def test_case_is_ignored_on_request():
    evaluator = ExactMatchEvaluator({"ignore_case": True})
    assert evaluator.evaluate({"answer": "Straße"}, BaseEvaluationTarget("STRASSE")).reward == 1.0
