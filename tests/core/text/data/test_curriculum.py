"""Curricula: buckets, openings and resampling by numbers worked out by hand."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from plugrl.core.config.check import Checker
from plugrl.core.config.schemas.sections import CurriculumConfig
from plugrl.core.errors import ConfigError
from plugrl.core.text.data.curriculum import Curriculum, difficulty_buckets
from plugrl.core.text.data.loader import Epochs, PromptLoader, filter_items
from plugrl.core.text.trajectory import Trajectory

ITEMS = [{"prompt": str(i), "level": level} for i, level in enumerate([3, 1, 2, 1, 3, 2, 1, 1])]


def curriculum(items=ITEMS, *, seed=0, shuffle=True, **options):
    return Curriculum(items, CurriculumConfig(**options), shuffle=shuffle, seed=seed)


def drawn(order, number):
    return [order.draw() for _ in range(number)]


def test_buckets_are_values_or_what_lies_between_edges():
    assert difficulty_buckets(ITEMS, None, []) == [list(range(8))]
    assert difficulty_buckets(ITEMS, "level", []) == [[1, 3, 6, 7], [2, 5], [0, 4]]
    assert difficulty_buckets(ITEMS, "level", [2]) == [[1, 3, 6, 7], [0, 2, 4, 5]]
    assert difficulty_buckets(ITEMS, "level", [0.5, 2.5, 9]) == [[1, 2, 3, 5, 6, 7], [0, 4]]
    words = [{"d": word} for word in ("hard", "easy", "hard")]
    assert difficulty_buckets(words, "d", []) == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("items", "edges"),
    [
        ([{"d": 1}, {}], []),
        ([{"d": 1}, {"d": None}], []),
        ([{"d": 1}, {"d": [1]}], []),
        ([{"d": 1}, {"d": "x"}], []),
        ([{"d": "x"}], [1.0]),
        ([{"d": float("nan")}], [1.0]),
    ],
)
def test_difficulties_that_are_none_are_named(items, edges):
    with pytest.raises(ConfigError, match=r"data\.curriculum\.column"):
        difficulty_buckets(items, "d", edges)


def test_without_a_curriculum_the_order_is_epochs_of_permutations():
    order = Epochs(8, shuffle=True, seed=[5])
    first, second = drawn(order, 8), drawn(order, 8)
    assert [epoch for _, epoch in first + second] == [0] * 8 + [1] * 8
    expected = [np.random.default_rng([5, epoch]).permutation(8).tolist() for epoch in (0, 1)]
    assert [[index for index, _ in part] for part in (first, second)] == expected


def test_a_bucket_is_drawn_by_its_weight_and_gone_through_epoch_by_epoch():
    order = curriculum(column="level", weights=[0, 0.75, 0.25])
    counts = Counter(index for index, _ in drawn(order, 4000))
    assert counts.keys() == {0, 2, 4, 5}
    assert (counts[2] + counts[5]) / 4000 == pytest.approx(0.75, abs=0.03)
    # Epoch by epoch: two problems of a bucket are never more than one draw apart.
    assert abs(counts[2] - counts[5]) <= 1
    assert abs(counts[0] - counts[4]) <= 1


def test_an_open_bucket_without_weight_is_drawn_from_where_there_is_no_other():
    order = curriculum(column="level", weights=[0, 1, 1], advance_at=0.5)
    # The first bucket alone is open, and nothing has been learned yet.
    assert {ITEMS[index]["level"] for index, _ in drawn(order, 20)} == {1}


def test_buckets_open_when_the_newest_is_learned():
    order = curriculum(column="level", advance_at=0.5, window=3)
    easy, middle = {1, 3, 6, 7}, {2, 5}
    assert {index for index, _ in drawn(order, 50)} == easy
    for reward in (0.0, 1.0):
        order.observe(1, [reward])
    assert order.metrics()["data/open_buckets"] == 1
    order.observe(3, [1.0, 0.0])
    assert order.metrics()["data/open_buckets"] == 2
    assert {index for index, _ in drawn(order, 100)} == easy | middle
    for _ in range(9):
        # Rewards of a bucket that is open already open nothing, nor do missing ones.
        order.observe(1, [1.0])
        order.observe(2, [])
    assert order.metrics()["data/open_buckets"] == 2
    for _ in range(3):
        order.observe(5, [0.5])
    assert order.metrics()["data/open_buckets"] == 3
    assert {index for index, _ in drawn(order, 200)} == set(range(8))


def open_buckets(order):
    return order.metrics()["data/open_buckets"]


def test_a_bucket_opens_by_the_last_rewards_of_the_newest_alone():
    order = curriculum(column="level", advance_at=0.5, window=2)
    for reward in (0.0, 0.0, 0.75):
        order.observe(1, [reward])
        assert open_buckets(order) == 1
    # Of 0, 0, 0.75 and 0.25 the last two.
    order.observe(3, [0.25])
    assert open_buckets(order) == 2
    # What opened it counts for the next one no longer.
    order.observe(2, [1.0])
    assert open_buckets(order) == 2
    order.observe(5, [1.0])
    assert open_buckets(order) == 3


def test_rewards_on_the_way_to_a_bucket_count_after_a_resume():
    order = curriculum(column="level", advance_at=0.5, window=3)
    for reward in (1.0, 1.0):
        order.observe(1, [reward])
    again = curriculum(column="level", advance_at=0.5, window=3)
    again.load_state_dict(json.loads(json.dumps(order.state_dict())))
    again.observe(1, [0.0])
    assert open_buckets(again) == 2


def test_what_is_known_of_a_problem_moves_by_the_rest_of_its_memory():
    order = curriculum([{"prompt": "a"}], resample="failure", memory=0.75)
    for rewards in ([4.0, 0.0], [8.0]):
        order.observe(0, rewards)
    # Means 2 and 8, deviations 2 and 0.
    assert order.state_dict()["problems"]["0"] == [0, 0.75 * 2 + 0.25 * 8, 0.75 * 2]


def test_problems_whose_rewards_differ_come_more_often():
    items = [{"prompt": str(i)} for i in range(3)]
    order = curriculum(items, resample="spread", floor=0.2)
    order.observe(0, [1, 1, 1, 1])  # spread 0, weight 0.2
    order.observe(1, [1, 0, 1, 0])  # spread 0.5, the largest: weight 1
    order.observe(2, [1, 1, 1, 0])  # spread 0.433: weight 0.2 + 0.8 * 0.866
    weights = np.array([0.2, 1.0, 0.2 + 0.8 * 0.75**0.5])
    counts = Counter(index for index, _ in drawn(order, 2500))
    shares = [counts[i] / 2500 for i in range(3)]
    assert shares == pytest.approx((weights / weights.sum()).tolist(), abs=0.02)


def test_problems_that_fail_come_more_often_whatever_the_scale_of_rewards():
    items = [{"prompt": str(i)} for i in range(4)]
    order = curriculum(items, resample="failure", floor=0.1, memory=0.5)
    order.observe(0, [-5.0])
    order.observe(1, [5.0])
    order.observe(2, [5.0])
    order.observe(2, [-5.0])  # a moving average: 0, in the middle
    weights = np.array([1.0, 0.1, 0.55, 1.0])  # the last was never given
    counts = Counter(index for index, _ in drawn(order, 2500))
    assert [counts[i] / 2500 for i in range(4)] == pytest.approx(
        (weights / weights.sum()).tolist(), abs=0.02
    )


@pytest.mark.parametrize(
    "options",
    [
        {"column": "level", "weights": [1, 2, 3]},
        {"column": "level", "advance_at": 0.3, "window": 2},
        {"resample": "spread"},
        {"column": "level", "resample": "failure", "advance_at": 0.0, "window": 1},
    ],
)
def test_a_curriculum_goes_on_where_it_was_saved(options):
    rewards = np.random.default_rng(0).random(200)

    def go(order, start, stop):
        seen = []
        for number in range(start, stop):
            index, before = order.draw()
            order.observe(index, [rewards[number], rewards[-number]])
            seen.append((index, before))
        return seen

    whole = curriculum(**options)
    expected = go(whole, 0, 150)
    first = curriculum(**options)
    go(first, 0, 70)
    second = curriculum(**options)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert go(second, 70, 150) == expected[70:]
    assert second.metrics() == whole.metrics()


def test_the_same_problem_drawn_twice_is_two_groups():
    items = [{"prompt": "a"}]
    loader = PromptLoader(items, order=curriculum(items, resample="spread"), batch_size=2, repeat=2)
    prompts = loader.next_batch()
    assert [(p.group_id, p.run_id, p.turn) for p in prompts] == [
        ("0/0", 0, 0),
        ("0/0", 1, 0),
        ("1/0", 0, 1),
        ("1/0", 1, 1),
    ]


def test_invalid_attempts_teach_the_order_nothing():
    items = [{"prompt": "a"}, {"prompt": "b"}]
    order = curriculum(items, resample="failure")
    loader = PromptLoader(items, order=order, batch_size=1, repeat=2)
    prompts = loader.next_batch()
    group = prompts[0].group_id
    bad = Trajectory([1, 2], [0, 1], reward=9.0, group_id=group, valid=False)
    good = Trajectory([1, 2], [0, 1], reward=1.0, group_id=group, run_id=1)
    loader.observe(prompts, [bad, good])
    problem = order.state_dict()["problems"][str(prompts[0].index)]
    assert problem == [1, 1.0, 0.0]


def test_resuming_with_another_kind_of_order_is_refused():
    plain = PromptLoader(ITEMS, batch_size=2)
    other = PromptLoader(ITEMS, order=curriculum(column="level"), batch_size=2)
    for one, another in ((plain, other), (other, plain)):
        with pytest.raises(ConfigError, match=r"data\.curriculum"):
            one.load_state_dict(another.state_dict())


@pytest.mark.parametrize(
    "options",
    [
        {"edges": [2, 1], "column": "d"},
        {"edges": [1]},
        {"advance_at": 0.5},
        {"window": 0},
        {"weights": []},
        {"weights": [-1, 2]},
        {"floor": 0},
        {"memory": 1},
    ],
)
def test_settings_out_of_range_are_refused(options):
    checker = Checker()
    checker.fields(options, CurriculumConfig, ())
    assert len(checker.faults) == 1


def test_weights_fit_the_buckets():
    with pytest.raises(ConfigError, match="2 numbers for 3 buckets"):
        curriculum(column="level", weights=[1, 1])


def test_rules_keep_ranges_and_values():
    items = [{"p": p, "s": s} for p, s in ((0.0, "a"), (0.5, "b"), (0.9, "a"), (1.0, "c"))]
    assert filter_items(items, {"p": [0.1, 0.9]}) == items[1:3]
    assert filter_items(items, {"s": ["a", "c"]}) == [items[0], items[2], items[3]]
    assert filter_items(items, {"p": [0.1, 1], "s": ["a"]}) == [items[2]]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"p": [2, 3]}, "keeps none"),
        ({"q": [0, 1]}, "no column 'q'"),
        ({"s": [0, 1]}, "is no number"),
    ],
)
def test_rules_that_cannot_be_followed(rules, said):
    with pytest.raises(ConfigError, match=said):
        filter_items([{"p": 0.5, "s": "a"}], rules)


@pytest.mark.parametrize("value", [math.nan, None, [1], {"a": 1}])
@pytest.mark.parametrize("edges", [(), (1.0,)])
def test_what_has_no_order_is_no_difficulty(value, edges):
    items = [{"level": 1}, {"level": value}, {"level": 0}]
    with pytest.raises(ConfigError, match="problem 1 has .* in 'level'; a number"):
        difficulty_buckets(items, "level", edges)
