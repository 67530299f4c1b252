"""Rates of success where scores are missing: what fails late must not raise them."""

import numpy as np
import pytest

from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.evaluation.metrics import dialogue_metrics
from plugrl.core.text.dialogue.evaluation.records import EvaluatedDialogue, Exchange
from plugrl.core.text.dialogue.evaluation.report import make_report
from plugrl.core.text.dialogue.evaluation.success import Share, success_by_turn, warn_of_missing
from plugrl.core.text.dialogue.scorer import Score
from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree


def trees_of(dialogues):
    """Trees of width 1 with these scores, which are the rewards too."""
    made = []
    for scores in dialogues:
        tree = RolloutTree(Dialogue("goal"))
        children, context = tree.children, tree.context
        for score in scores:
            failure = "gone" if score is None else ""
            node = RolloutNode(context, "p", "r", score or 0.0, failure=failure)
            node.score = Score(score or 0.0, failure=failure)
            children.append(node)
            children, context = node.children, node.dialogue
        made.append(tree)
    return made


def exchange(score):
    return Exchange("p", "r", score, failure="gone" if score is None else "")


def report_of(dialogues):
    records = [
        EvaluatedDialogue("g", item=i, exchanges=[exchange(score) for score in scores])
        for i, scores in enumerate(dialogues)
    ]
    return make_report(records, resamples=200)


#: Two of ten succeed, at turn 1.
FIRST = [1.0] * 2 + [0.0] * 8


@pytest.mark.parametrize(
    ("second", "rate", "low", "high"),
    [
        ([0.0] * 10, 0.2, 0.2, 0.2),
        ([None] * 10, None, 0.2, 1.0),
        # The judge fails behind successes alone, then behind failures alone.
        ([None] * 2 + [0.0] * 8, 0.2, 0.2, 0.2),
        ([0.0] * 2 + [None] * 8, None, 0.2, 1.0),
        ([None, 0.0] * 5, 0.2, 0.2, 0.6),
        # One more success, among four that have a score: 1 - 4/5 * 3/4.
        ([None, None, 1.0, 0.0, 0.0, 0.0, None, None, None, None], 0.4, 0.3, 0.7),
    ],
)
def test_a_judge_that_fails_late_changes_no_earlier_rate(second, rate, low, high):
    dialogues = list(zip(FIRST, second, strict=True))
    first, last = success_by_turn(dialogues, 0.5)
    assert first == Share(0.2, 0.2, 0.2)
    assert last.rate == (None if rate is None else pytest.approx(rate))
    assert (last.low, last.high) == pytest.approx((low, high))
    report = report_of(dialogues)
    overall, turns = report["overall"], report["per_turn"]
    assert [t["success_rate_by_then"] for t in turns] == [0.2, last.rate]
    assert overall["success_rate"] == last.rate
    assert overall["success_rate_bounds"] == turns[1]["bounds_by_then"] == [last.low, last.high]
    assert overall["interval"][0] <= last.low <= last.high <= overall["interval"][1]
    assert overall["not_scored"] == second.count(None)
    found = dialogue_metrics(trees_of(dialogues))
    assert (found["success"], found["success_at_most"]) == (last.low, last.high)
    assert found["failed"] == second.count(None) / 10


def test_no_missing_score_raises_what_the_best_tester_is_chosen_by():
    rng = np.random.default_rng(0)
    for _ in range(20):
        whole = (rng.random((12, 3)) < 0.3).astype(float)
        gone = rng.random((12, 3)) < rng.random()
        kept = [
            [None if out else float(score) for score, out in zip(*pair, strict=True)]
            for pair in zip(whole, gone, strict=True)
        ]
        true, found = dialogue_metrics(trees_of(whole.tolist())), dialogue_metrics(trees_of(kept))
        assert found.get("success", 0.0) <= true["success"] <= found.get("success_at_most", 1.0)
        for share, right in zip(
            success_by_turn(kept, 0.5), success_by_turn(whole.tolist(), 0.5), strict=True
        ):
            assert share.low <= right.low <= share.high
            assert share.rate is None or share.low <= share.rate <= share.high


def test_rewards_of_turns_without_scores_are_not_said():
    # By hand: turn 1 has the mean 0.2, turn 2 the mean 0.5 of the two that have a score.
    half = [(score, float(i % 2) if i < 2 else None) for i, score in enumerate(FIRST)]
    assert dialogue_metrics(trees_of(half))["reward"] == pytest.approx((0.2 + 0.5) / 2)
    none = dialogue_metrics(trees_of([(score, None) for score in FIRST]))
    assert "reward" not in none
    assert none["score"] == pytest.approx(0.2)
    assert dialogue_metrics(trees_of([(None,)] * 3)).keys() & {"success", "score"} == set()


def test_dialogues_that_end_early_and_successes_behind_a_missing_score():
    # The second ended with a score, the third was never begun, the fourth succeeded behind a gap.
    shares = success_by_turn([(0.0, 1.0), (0.0,), (), (None, 1.0)], 0.5)
    assert shares == [Share(0.0, 0.0, 0.5), Share(0.5, 0.5, 0.75)]
    assert success_by_turn([(None, 1.0)] * 2, 0.5) == [Share(None, 0.0, 1.0), Share(1.0, 1.0, 1.0)]
    assert success_by_turn([], 0.5) == []


def test_many_missing_scores_are_said(caplog):
    warn_of_missing([(0.0, 0.0)] * 19 + [(0.0, None)], "gone")
    assert not caplog.records
    warn_of_missing([(1.0, 0.0)] * 9 + [(1.0, None)], "gone")
    (record,) = caplog.records
    assert "1 of 10 dialogues lack a score" in record.message
    assert record.message.endswith("the first: gone")
