"""pass@k, best@k and majority against enumeration of all draws and values worked by hand."""

import itertools

import pytest

from plugrl.core.text.evaluate.pass_at_k import (
    Passing,
    best_at_k,
    majority_reward,
    pass_at_k,
    powers_of_two,
    sample_metrics,
)
from plugrl.core.text.trajectory import Trajectory


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        (5, 2, 1, 0.4),
        (5, 2, 2, 0.7),  # 1 - C(3,2)/C(5,2) = 1 - 3/10
        (10, 3, 5, 1 - 21 / 252),  # C(7,5)=21, C(10,5)=252
        (4, 0, 4, 0.0),
        (4, 1, 4, 1.0),
        (200, 1, 100, 0.5),
    ],
)
def test_pass_at_k_by_hand(samples, correct, k, expected):
    assert pass_at_k(samples, correct, k) == pytest.approx(expected)


def test_pass_and_best_are_means_over_all_draws():
    rewards = [0.0, 1.0, 0.25, 1.0, 0.5, 0.0]
    for k in range(1, len(rewards) + 1):
        draws = [max(draw) for draw in itertools.combinations(rewards, k)]
        assert best_at_k(rewards, k) == pytest.approx(sum(draws) / len(draws))
        passed = sum(best == 1.0 for best in draws) / len(draws)
        assert pass_at_k(len(rewards), 2, k) == pytest.approx(passed)


@pytest.mark.parametrize("arguments", [(4, 1, 0), (4, 1, 5), (4, 5, 2), (4, -1, 2)])
def test_what_is_not_defined_is_refused(arguments):
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(*arguments)


def test_the_majority_decides_and_a_tie_is_shared():
    assert majority_reward(["4", "4", "5"], [1.0, 1.0, 0.0]) == 1.0
    assert majority_reward(["4", "5"], [1.0, 0.0]) == 0.5
    assert majority_reward(["4", "5", "5"], [1.0, 0.0, 0.0]) == 0.0


def test_powers_of_two_and_the_number_itself():
    assert powers_of_two(1) == [1]
    assert powers_of_two(6) == [1, 2, 4, 6]
    assert powers_of_two(8) == [1, 2, 4, 8]


def attempt(group, run, reward, valid=True, **kwargs):
    return Trajectory([1, 2], [0, 1], reward, group_id=group, run_id=run, valid=valid, **kwargs)


def test_metrics_of_two_problems_by_hand():
    found = [
        attempt("a", 0, 1.0),
        attempt("a", 1, 0.0),
        attempt("a", 2, 0.0),
        attempt("a", 3, 0.0),
        attempt("b", 0, 0.5),
        attempt("b", 1, 0.0),
        attempt("b", 2, 0.0, valid=False),
        attempt("b", 3, 0.0, valid=False),
    ]
    metrics = sample_metrics(found, 4, Passing())
    # a: one of four; b: two valid ones, none passes. pass@4 is of a alone.
    assert metrics == {
        "pass@1": pytest.approx((0.25 + 0) / 2),
        "best@1": pytest.approx((0.25 + 0.25) / 2),
        "pass@2": pytest.approx((0.5 + 0) / 2),
        "best@2": pytest.approx((0.5 + 0.5) / 2),
        "pass@4": 1.0,
        "best@4": 1.0,
    }
    assert sample_metrics(found, 4, Passing(threshold=0.5))["pass@1"] == pytest.approx(0.375)


def test_a_metric_of_the_evaluator_decides_and_extracted_answers_vote():
    found = [
        attempt("a", 0, 0.1, metrics={"correct": 1.0}, extra_fields={"extracted": "7"}),
        attempt("a", 1, 0.2, metrics={"correct": 0.0}, extra_fields={"extracted": "8"}),
        attempt("a", 2, 0.4, metrics={}, extra_fields={"extracted": "8"}),
    ]
    metrics = sample_metrics(found, 3, Passing("correct"))
    assert metrics["pass@1"] == pytest.approx(1 / 3)
    assert metrics["pass@3"] == 1.0
    assert metrics["majority@3"] == pytest.approx(0.3)


def test_parts_of_one_attempt_are_one_sample():
    found = [attempt("a", 0, 1.0), attempt("a", 0, 0.0), attempt("a", 1, 1.0)]
    metrics = sample_metrics(found, 2, Passing())
    assert metrics["pass@1"] == 0.5
    assert metrics["best@2"] == 1.0
    assert metrics["best@1"] == 0.75


def test_nothing_valid_gives_no_numbers():
    assert sample_metrics([attempt("a", 0, 1.0, valid=False)], 2, Passing()) == {}


def test_an_attempt_of_several_trajectories_passes_by_the_one_that_was_judged():
    parts = [Trajectory([1], [0], reward=1.0, group_id="a", metrics=m) for m in ({}, {"ok": 1.0})]
    assert sample_metrics(parts, 1, Passing("ok"))["pass@1"] == 1.0


def test_the_last_answer_of_an_attempt_of_several_trajectories_votes():
    first, last = ({"extracted": answer} for answer in ("7", "8"))
    found = [
        attempt("a", 0, 1.0, extra_fields=first),
        attempt("a", 0, 0.0, extra_fields=last),
        attempt("a", 1, 0.25, extra_fields=last),
        attempt("a", 2, 1.0, extra_fields=first),
    ]
    # Two say 8 and have 0.5 and 0.25; that the first said 7 before does not count.
    assert sample_metrics(found, 3, Passing())["majority@3"] == pytest.approx(0.375)


def test_what_reaches_the_threshold_passes():
    found = [attempt("a", 0, 0.5), attempt("a", 1, 0.4999)]
    assert sample_metrics(found, 2, Passing(threshold=0.5))["pass@1"] == 0.5
