"""How the rows of a batch are spread over ranks and passes."""

from collections import Counter

import pytest
import torch
from here import ROWS, batch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.text.batch import Batch
from plugrl.core.text.trajectory import Trajectory
from plugrl.plugins.distributed.passes import Plan, gradients_of, spread_rows


def rows_of(lengths, unit=None):
    made = Batch.from_trajectories(
        [Trajectory([2 + i, *[1] * (n - 1)], [0, *[1] * (n - 1)]) for i, n in enumerate(lengths)]
    )
    if unit is not None:
        made.metadata["unit"] = torch.tensor(unit)
    return made


def loads(lengths, shares):
    return [sum(lengths[row] for row in rows) for rows in shares]


def test_ranks_get_as_many_tokens():
    # By hand: 9 | 8, 9 + 2 | 8 + 3, and so on.
    lengths = [9, 8, 3, 2]
    assert loads(lengths, spread_rows(rows_of(lengths), 2)) == [11, 11]


def test_units_stay_whole():
    lengths, unit = [9, 9, 2, 2], [0, 1, 0, 1]
    assert spread_rows(rows_of(lengths, unit), 2) == [[0, 2], [1, 3]]


def test_rows_of_one_prompt_stay_together_where_ranks_are_balanced():
    prompts = [[2, 3], [4, 5], [2, 3], [4, 5]]
    made = Batch.from_trajectories([Trajectory([*p, 6, 1], [0, 0, 1, 1]) for p in prompts])
    assert spread_rows(made, 2) == [[0, 2], [1, 3]]
    one = Batch.from_trajectories([Trajectory([2, 3, 6, 1], [0, 0, 1, 1])] * 4)
    assert [len(rows) for rows in spread_rows(one, 2)] == [2, 2]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 20), st.integers(0, 5)), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_every_row_has_one_rank_and_no_unit_has_two(rows, ranks):
    lengths, unit = zip(*rows, strict=True)
    shares = spread_rows(rows_of(lengths, list(unit)), ranks)
    assert len(shares) == ranks
    assert Counter(row for share in shares for row in share) == Counter(range(len(rows)))
    holders = {
        u: {r for r, share in enumerate(shares) for row in share if unit[row] == u} for u in unit
    }
    assert all(len(held) == 1 for held in holders.values())
    # The greedy bound: nobody has more than the mean and one unit.
    largest = max(sum(n for n, u in rows if u == each) for each in unit)
    assert max(loads(lengths, shares)) <= sum(lengths) / ranks + largest


def test_a_rank_without_rows_takes_part_in_each_pass():
    plan = Plan.of(batch(ROWS[:1]), 2, size=64, tokens=None, packs=True)
    ((one, other),) = plan.passes
    assert one.rows.tolist() == [0]
    assert other.rows is None
    assert other.sent.batch.values["loss_mask"].tolist() == [[0, 1]]


def test_ranks_have_as_many_passes_as_the_one_with_most():
    # One long row against seven short ones, in micro-batches of two.
    lengths = [21, *[3] * 7]
    plan = Plan.of(rows_of(lengths), 2, size=2, tokens=None, packs=False)
    counts = [[0 if part.rows is None else len(part.rows) for part in each] for each in plan.passes]
    assert counts == [[1, 2], [0, 2], [0, 2], [0, 1]]


def test_rows_of_prompts_alone_need_no_pass():
    plan = Plan.of(batch(), 2, size=64, tokens=None, packs=True)
    held = [
        row
        for each in plan.passes
        for part in each
        if part.rows is not None
        for row in part.rows.tolist()
    ]
    # The row without a trained token may share a micro-batch, but never is one.
    assert set(held) | {3} == set(range(len(ROWS)))
    alone = Plan.of(batch(ROWS[3:4]), 2, size=64, tokens=None, packs=True)
    assert not alone.passes
    assert len(alone.untrained) == 1


def leaf(grad):
    made = torch.zeros(1, 3, requires_grad=True)
    made.grad = None if grad is None else torch.full((1, 3), grad)
    return made


def test_what_one_rank_goes_backward_from_all_do():
    given = gradients_of(
        [
            {"log_probs": leaf(2.0), "values": leaf(None)},
            None,
            {"log_probs": leaf(None), "values": leaf(1.0)},
        ]
    )
    assert [sorted(each) for each in given] == [["log_probs", "values"]] * 3
    assert given[0]["log_probs"].tolist() == [[2.0] * 3]
    assert given[0]["values"].tolist() == [[0.0] * 3]
    assert given[1]["values"].tolist() == [[0.0] * 2]


@pytest.mark.parametrize("leaves", [[None, {"log_probs": leaf(None)}], [{"log_probs": leaf(None)}]])
def test_without_any_gradient_nobody_goes_backward(leaves):
    assert gradients_of(leaves) == [None] * len(leaves)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 20), st.integers(0, 7)), min_size=1, max_size=16),
    st.integers(1, 4),
    st.integers(20, 60),
)
def test_a_rank_is_idle_only_where_it_has_fewer_units_than_there_are_passes(rows, ranks, tokens):
    lengths, unit = zip(*rows, strict=True)
    made = rows_of(lengths, list(unit))
    plan = Plan.of(made, ranks, size=64, tokens=tokens, packs=True)
    for share, parts in zip(spread_rows(made, ranks), zip(*plan.passes, strict=True), strict=True):
        own = [part.rows.tolist() for part in parts if part.rows is not None]
        assert sorted(row for rows in own for row in rows) == share
        units = {unit[row] for row in share}
        assert len(own) == min(len(units), len(plan.passes))


def test_the_passes_of_a_rank_are_about_equal():
    # 128 rows of 500 tokens are five passes of at most 32 rows, by hand: 26 x 4 + 24.
    plan = Plan.of(rows_of([500] * 256), 2, size=64, tokens=15_900, packs=True)
    assert [[len(part.rows) for part in parts] for parts in plan.passes] == [[26, 26]] * 4 + [
        [24, 24]
    ]
