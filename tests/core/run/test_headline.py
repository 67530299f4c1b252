"""The one curve by which a run is judged."""

from plugrl.core.run.records.headline import headline_of

LINES = [
    {"step": 0, "train/loss": 3.0, "validation/reward": 0.1},
    {"step": 1, "train/loss": 1.0},
    {"step": 2, "train/loss": 2.0, "validation/reward": 0.4, "validation/length": 7},
    {"step": 3, "validation/reward": 0.3, "validation/length": 9, "train/loss": None},
]


def test_the_reported_score_comes_first():
    found = headline_of({"headline": {"metric": "validation/length", "mode": "min"}}, LINES)
    assert (found.metric, found.lower_is_better) == ("validation/length", True)
    assert (found.first, found.last, found.best) == (7, 9, 7)


def test_without_one_rewards_come_before_losses():
    found = headline_of({}, LINES)
    assert found.metric == "validation/reward"
    assert list(found.points) == [(0, 0.1), (2, 0.4), (3, 0.3)]
    assert (found.first, found.last, found.best) == (0.1, 0.3, 0.4)


def test_a_loss_is_best_where_it_is_smallest_and_gaps_are_left_out():
    lines = [{k: v for k, v in line.items() if "validation" not in k} for line in LINES]
    found = headline_of({"headline": None}, lines)
    assert (found.metric, found.best, len(found.points)) == ("train/loss", 1.0, 3)


def test_a_run_without_any_has_no_headline():
    assert headline_of({}, [{"step": 1, "time/train": 2.0}]) is None
    assert headline_of({"headline": {"metric": "gone", "mode": "max"}}, []) is None
