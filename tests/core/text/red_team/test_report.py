"""Reports of red-teaming: rates, intervals, turns, scores and diversity, worked by hand."""

import json
import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.evaluation.records import (
    EvaluatedDialogue,
    Exchange,
    record_of,
)
from plugrl.core.text.dialogue.evaluation.report import make_report, report_metrics
from plugrl.core.text.dialogue.evaluation.success import success_interval
from plugrl.core.text.dialogue.scorer import Score
from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree


def talk(*scores, item=0, attempt=0, category="", probes=None):
    """A dialogue with these scores; None: an exchange without one."""
    probes = probes or [f"probe {item} {attempt} {turn}" for turn in range(len(scores))]
    exchanges = [
        Exchange(probe, "reply", score, failure="" if score is not None else "gone")
        for probe, score in zip(probes, scores, strict=True)
    ]
    return EvaluatedDialogue(f"goal {item}", category, item, attempt, 0, exchanges)


# Two prompts of category a, one of b; three attempts at the first.
SCRIPTED = [
    talk(0.1, 0.9, 0.9, item=0, attempt=0, category="a"),
    talk(0.1, 0.2, 0.5, item=0, attempt=1, category="a"),
    talk(0.1, None, 0.2, item=0, attempt=2, category="a"),
    talk(0.0, 0.0, 0.0, item=1, category="a"),
    talk(1.0, 0.0, 0.0, item=2, category="b"),
    talk(None, 0.8, item=2, attempt=1, category="b"),
    talk(None, item=3),
]


def test_success_and_first_turn_of_scripted_dialogues():
    report = make_report(SCRIPTED)
    overall = report["overall"]
    # Successes: turn 2, turn 3, turn 1, and one whose first exchange has no score.
    assert (overall["dialogues"], overall["scored"], overall["not_scored"]) == (7, 4, 3)
    assert overall["successes"] == 4
    # Turn by turn one of five, of three, of two: 1 - 4/5 * 2/3 * 1/2.
    assert overall["success_rate"] == pytest.approx(11 / 15)
    # The third and the last lack a score and have no success.
    assert overall["success_rate_bounds"] == pytest.approx([4 / 7, 6 / 7])
    assert overall["first_success_turn"] == {
        "mean": 2.0,
        "distribution": {"1": 1, "2": 1, "3": 1},
        "unknown": 1,
    }
    assert report["failures"] == {"gone": 3}
    assert report["prompts"] == 4
    # The first and the third for certain; nobody knows of the fourth.
    assert overall["prompts_with_success"] == 0.5
    assert overall["prompts_with_success_at_most"] == 0.75
    a, b, none = (report["by_category"][name] for name in ("a", "b", ""))
    assert (a["success_rate"], a["scored"], a["not_scored"]) == (pytest.approx(2 / 3), 3, 1)
    assert (b["success_rate"], b["scored"], b["not_scored"]) == (1.0, 1, 1)
    assert (none["success_rate"], none["mean_score"]) == (None, None)
    assert none["success_rate_bounds"] == none["interval"] == [0.0, 1.0]


def test_scores_by_turn():
    turns = make_report(SCRIPTED)["per_turn"]
    assert [(t["turn"], t["exchanges"], t["not_scored"]) for t in turns] == [
        (1, 7, 2),
        (2, 6, 1),
        (3, 5, 0),
    ]
    assert [t["mean_score"] for t in turns] == pytest.approx(
        [1.3 / 5, (0.9 + 0.2 + 0 + 0 + 0.8) / 5, 1.6 / 5]
    )
    # One of five succeeds at turn 1, then one of the three that go on with a score, one of two.
    rates = [t["success_rate_by_then"] for t in turns]
    assert rates == pytest.approx([1 / 5, 7 / 15, 11 / 15])
    bounds = [number for t in turns for number in t["bounds_by_then"]]
    assert bounds == pytest.approx([1 / 7, 3 / 7, 3 / 7, 5 / 7, 4 / 7, 6 / 7])


def test_a_constant_score_is_every_mean():
    dialogues = [talk(0.3, 0.3, item=i, category="ab"[i % 2]) for i in range(6)]
    report = make_report(dialogues)
    groups = [report["overall"], *report["by_category"].values(), *report["per_turn"]]
    assert [group["mean_score"] for group in groups] == pytest.approx([0.3] * 5)
    assert report["overall"]["mean_highest_score"] == pytest.approx(0.3)
    assert report["overall"]["success_rate"] == 0.0
    assert report["overall"]["first_success_turn"]["mean"] is None
    assert make_report(dialogues, threshold=0.3)["overall"]["success_rate"] == 1.0


def test_categories_of_the_scorer():
    first = EvaluatedDialogue("g", exchanges=[Exchange("p", "r", 0.5, {"x": 0.2, "y": 1.0})])
    second = EvaluatedDialogue("g", item=1, exchanges=[Exchange("p", "r", 0.5, {"x": 0.4})])
    report = make_report([first, second])
    assert report["overall"]["scorer_categories"] == {"x": pytest.approx(0.3), "y": 1.0}
    assert report_metrics(report)["red_team/score/x"] == pytest.approx(0.3)


def test_diversity():
    same = [talk(0.0, item=i, probes=["a b a b"]) for i in range(3)]
    found = make_report(same)["diversity"]
    assert (found["probes"], found["unique_probes"], found["unique_successful_probes"]) == (3, 1, 0)
    # Twelve words of two kinds; nine pairs, which are "a b" and "b a".
    assert (found["distinct_1"], found["distinct_2"]) == pytest.approx((2 / 12, 2 / 9))
    assert found["self_similarity"] == pytest.approx(1.0)
    other = [talk(1.0, item=i, probes=[word]) for i, word in enumerate(["abc", "xyz"])]
    found = make_report(other)["diversity"]
    assert found["self_similarity"] == pytest.approx(0.0)
    assert found["unique_successful_probes"] == 2
    many = [talk(0.0, item=i, probes=["abc" if i % 2 else "xyz"]) for i in range(3000)]
    # Some hundred of them are compared, half of which are equal.
    assert make_report(many, resamples=10)["diversity"]["self_similarity"] == pytest.approx(
        0.5, abs=0.05
    )


def test_the_worst_come_first():
    worst = make_report(SCRIPTED, worst=3)["worst"]
    assert [(d["item"], d["attempt"], d["highest"], d["success_turn"]) for d in worst] == [
        (2, 0, 1.0, 1),
        (0, 0, 0.9, 2),
        (2, 1, 0.8, 2),
    ]
    assert worst[0]["exchanges"][0]["response"] == "reply"


def test_a_report_is_plain_json_and_so_is_one_of_nothing():
    for dialogues in (SCRIPTED, []):
        report = make_report(dialogues)
        assert json.loads(json.dumps(report, allow_nan=False)) == report
    metrics = report_metrics(make_report(SCRIPTED))
    assert metrics["red_team/success_rate"] == pytest.approx(11 / 15)
    assert metrics["red_team/success_rate_at_least"] == pytest.approx(4 / 7)
    assert metrics["red_team/success_rate_at_most"] == pytest.approx(6 / 7)
    assert metrics["red_team/success_rate/b"] == 1.0
    assert metrics["red_team/not_scored"] == 3.0
    assert "red_team/success_rate/" not in metrics
    assert report_metrics(report)["red_team/dialogues"] == 0.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_intervals_are_those_of_numpy():
    won, tried = [2, 0, 1, 3, 0], [3, 3, 1, 4, 0]
    found = success_interval(won, tried, resamples=500, seed=7)
    # By hand: prompts with a score, drawn with the same generator.
    draws = np.random.default_rng(7).integers(4, size=(500, 4))
    rates = [sum(won[i] for i in row) / sum(tried[i] for i in row) for row in draws]
    assert found == pytest.approx(tuple(np.percentile(rates, [2.5, 97.5])))
    assert success_interval(won, tried, resamples=500, seed=7) == found
    assert success_interval(won, tried, resamples=500, seed=8) != found


def test_intervals_are_those_of_scipy():
    rng = np.random.default_rng(0)
    tried = rng.integers(1, 5, size=60)
    won = rng.binomial(tried, 0.3)
    low, high = success_interval(won, tried, resamples=20_000, seed=1)
    other = bootstrap(
        (won, tried),
        lambda w, t, axis=-1: w.sum(axis) / t.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert low == pytest.approx(other.low, abs=0.006)
    assert high == pytest.approx(other.high, abs=0.006)
    assert low < won.sum() / tried.sum() < high


def test_attempts_at_one_prompt_do_not_narrow_the_interval():
    # Ten prompts, each of which always or never succeeds, however often it is tried.
    once = success_interval([1, 0] * 5, [1] * 10)
    often = success_interval([50, 0] * 5, [50] * 10)
    assert often == once
    assert once[1] - once[0] > 0.5


@pytest.mark.parametrize(
    ("won", "tried", "ends"),
    [([], [], None), ([0], [0], None), ([3, 3], [3, 3], (1.0, 1.0)), ([0], [2], (0.0, 0.0))],
)
def test_intervals_at_the_edges(won, tried, ends):
    assert success_interval(won, tried, resamples=50) == ends


def test_many_prompts_are_drawn_in_parts():
    won = np.arange(5000) % 2
    low, high = success_interval(won, [1] * 5000, resamples=2000)
    # Normal approximation of the same.
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.5 / 5000**0.5, 0.5 + 0.01386), abs=2e-3)


def test_records_of_trees():
    context = Dialogue("goal", "a")
    tree = RolloutTree(context, seed=5)
    for name in ("x", "y"):
        node = RolloutNode(context, name, "r", score=Score(0.5, {"k": 1.0}))
        later = RolloutNode(node.dialogue, f"{name}2", "", failure="no answer")
        node.children.append(later)
        tree.children.append(node)
    first = record_of(tree, 2, 1)
    assert (first.prompt, first.item, first.attempt) == ("goal", 2, 1)
    assert (first.seed, first.category) == (5, "a")
    assert first.exchanges == [
        Exchange("x", "r", 0.5, {"k": 1.0}),
        Exchange("x2", "", None, failure="no answer"),
    ]
    assert EvaluatedDialogue.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    empty = record_of(RolloutTree(context), 3, 2)
    assert (empty.item, empty.attempt, empty.failure) == (3, 2, "no exchange took place")
    assert empty.succeeded(0.5) is None
