"""Estimators against numbers worked by hand, against TorchRL, and against their definitions."""

import math
import random

import pytest
import torch
from torchrl.objectives.value.functional import generalized_advantage_estimate

from plugrl.core import estimators

YES, NO = True, False


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


# delta = r + 0.5 V' - V, A = delta + 0.5 * 0.5 A'.
VALUES = rows([1.0, 2.0, 4.0])
REWARDS = rows([0.0, 1.0, 3.0])


def test_gae_without_next_values_ends_with_nothing_behind_a_row():
    # delta = [0 + 1 - 1, 1 + 2 - 2, 3 - 4] = [0, 1, -1]; A = [0 + 0.75 / 4, 1 - 1 / 4, -1].
    found = estimators.gae(REWARDS, VALUES, 0.5, 0.5)
    assert found.tolist() == [[0.1875, 0.75, -1.0]]


def test_gae_passes_over_steps_that_are_not_valid():
    # The steps 0 and 2 alone: delta = [0 + 0.5 * 4 - 1, 3 - 4] = [1, -1], A = [1 - 1 / 4, -1].
    nan = math.nan
    found = estimators.gae(
        rows([0.0, nan, 3.0]), rows([1.0, nan, 4.0]), 0.5, 0.5, valid=torch.tensor([[YES, NO, YES]])
    )
    assert found.tolist() == [[0.75, 0.0, -1.0]]


def test_gae_counts_the_value_behind_a_cut_and_none_behind_a_terminal_state():
    next_values = rows([8.0, 8.0, 8.0])
    done = torch.tensor([[NO, YES, NO]])
    # delta = [0 + 4 - 1, 1 + 4 - 2, 3 + 4 - 4] = [3, 3, 3]; A_0 = 3 + 3 / 4.
    cut = estimators.gae(REWARDS, VALUES, 0.5, 0.5, next_values=next_values, done=done)
    assert cut.tolist() == [[3.75, 3.0, 3.0]]
    # delta_1 = 1 - 2 = -1; A_0 = 3 - 1 / 4.
    ended = estimators.gae(
        REWARDS, VALUES, 0.5, 0.5, next_values=next_values, done=done, terminated=done
    )
    assert ended.tolist() == [[2.75, -1.0, 3.0]]
    # Without values of what followed, an end is worth nothing, as a terminal state is.
    alone = estimators.gae(REWARDS, VALUES, 0.5, 0.5, done=done)
    assert alone.tolist() == [[0.0 - 0.25, -1.0, -1.0]]


@pytest.mark.parametrize("steps", [1, 2, 7, 33])
def test_gae_equals_that_of_torchrl(steps):
    generator = torch.Generator().manual_seed(steps)
    shape = (5, steps)
    rewards, values, following = (torch.randn(shape, generator=generator) for _ in range(3))
    done = torch.rand(shape, generator=generator) < 0.3
    terminated = done & (torch.rand(shape, generator=generator) < 0.5)
    theirs, _ = generalized_advantage_estimate(
        0.97,
        0.9,
        *(t.unsqueeze(-1) for t in (values, following, rewards, done, terminated)),
    )
    ours = estimators.gae(
        rewards, values, 0.97, 0.9, next_values=following, terminated=terminated, done=done
    )
    torch.testing.assert_close(ours, theirs.squeeze(-1), rtol=1e-5, atol=1e-6)


def test_a_gain_of_waiting_belongs_to_the_own_step_before_it():
    # Own steps 0 and 3 with V = 1 and 2; while waiting 4 and 8 are earned; g = 0.5, lambda = 0.5.
    # delta_0 = 0 + 4 / 2 + 8 / 4 + 2 / 8 - 1 = 3.25; delta_3 = 1 - 2 = -1;
    # A_0 = 3.25 + (1 / 8)(1 / 2)(-1) = 3.1875.
    done = torch.tensor([[NO, NO, NO, YES]])
    found = estimators.gae_in_turns(
        rows([0.0, 4.0, 8.0, 1.0]),
        rows([1.0, math.nan, math.nan, 2.0]),
        rows([7.0, 7.0, 7.0, 7.0]),
        done,
        done,
        0.5,
        0.5,
        acting=torch.tensor([[YES, NO, NO, YES]]),
        waiting=torch.tensor([[NO, YES, YES, NO]]),
        known=torch.tensor([[YES, NO, NO, YES]]),
    )
    assert found.tolist() == [[3.1875, 0.0, 0.0, -1.0]]


def test_turns_of_one_agent_alone_are_plain_steps():
    generator = torch.Generator().manual_seed(1)
    rewards, values = (torch.randn(4, 9, generator=generator).double() for _ in range(2))
    done = torch.rand(4, 9, generator=generator) < 0.2
    following = torch.cat([values[:, 1:], torch.randn(4, 1, generator=generator).double()], 1)
    every, none = torch.ones_like(done), torch.zeros_like(done)
    turns = {"acting": every, "waiting": none, "known": every}
    found = estimators.gae_in_turns(rewards, values, following, none, done, 0.9, 0.8, **turns)
    plain = estimators.gae(rewards, values, 0.9, 0.8, next_values=following, done=done)
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 13, 100])
def test_sums_of_any_length_equal_the_recursion(steps):
    draw = random.Random(steps)
    rewards = [draw.gauss(0, 1) for _ in range(steps)]
    done = [draw.random() < 0.1 for _ in range(steps)]
    valid = [draw.random() < 0.7 for _ in range(steps)]
    expected, ahead = [0.0] * steps, 0.0
    for t in reversed(range(steps)):
        if done[t]:
            ahead = 0.0
        if valid[t]:
            ahead = rewards[t] + 0.9 * ahead
            expected[t] = ahead
    found = estimators.discounted_sum(
        rows(rewards), 0.9, done=torch.tensor([done]), valid=torch.tensor([valid])
    )
    assert found[0].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_groups_compare_runs_and_not_rows():
    # Group 0: run 0 has rows of 1 and 3 and counts once with 2, run 1 has 5, an invalid row 100.
    # Group 1: one run. Group 2: equal rewards, of which a third is no binary fraction.
    rewards = torch.tensor([1.0, 3.0, 5.0, 100.0, 7.0, 1 / 3, 1 / 3, 1 / 3])
    group = torch.tensor([0, 0, 0, 0, 1, 2, 2, 2])
    run = torch.tensor([0, 0, 1, 2, 0, 0, 1, 2])
    valid = torch.tensor([YES, YES, YES, NO, YES, YES, YES, YES])
    found = estimators.group_statistics(rewards, group, run, valid)
    assert found.rewards[:5].tolist() == [2.0, 2.0, 5.0, 0.0, 7.0]
    assert found.mean[:5].tolist() == [3.5, 3.5, 3.5, 0.0, 7.0]
    assert found.std[:3].tolist() == pytest.approx([math.sqrt(4.5)] * 3)
    assert found.std[3:].tolist() == [math.inf] * 5
    assert found.runs.tolist() == [2, 2, 2, 0, 1, 3, 3, 3]


def test_means_that_differ_by_rounding_alone_are_equal():
    # The same rewards in another order: float64 loses other digits of the small ones.
    rewards = torch.tensor([3e9, 0.1, 0.2, 0.1, 0.2, 3e9])
    run = torch.tensor([0, 0, 0, 1, 1, 1])
    found = estimators.group_statistics(
        rewards, torch.zeros(6), run, torch.ones(6, dtype=torch.bool)
    )
    assert found.rewards[0] != found.rewards[3]
    assert found.std.tolist() == [math.inf] * 6


def test_no_valid_row_gives_no_statistics():
    none = torch.zeros(2, dtype=torch.bool)
    index = torch.tensor([0, 1])
    found = estimators.group_statistics(torch.ones(2), index, index, none)
    assert found._replace(std=found.runs) == (*[pytest.approx([0.0, 0.0])] * 4,)
    assert found.std.tolist() == [math.inf] * 2


def test_whitened_values_have_mean_0_and_deviation_1_where_they_count():
    # 1 and 5: mean 3, population deviation 2.
    mask = torch.tensor([[YES, NO, YES]])
    found = estimators.whiten(rows([1.0, 50.0, 5.0]), mask, 0.5)
    assert found.tolist() == [[-2 / 2.5, 0.0, 2 / 2.5]]
    assert estimators.whiten(rows([0.1, 9.0, 0.1]), mask, 0.0).tolist() == [[0.0] * 3]
    assert estimators.whiten(rows([1.0]), torch.tensor([[NO]]), 0.0).tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, None, -2.0, -2.0, NO),
        (1.5, 2.0, None, -2.6, 0.0, YES),  # above 1 + 0.3
        (0.5, 2.0, None, -1.0, -2.0, NO),  # the unclipped loss is the larger one
        (0.5, -2.0, None, 1.8, 0.0, YES),  # below 1 - 0.1
        (5.0, -2.0, None, 10.0, 2.0, NO),
        (5.0, -2.0, 3.0, 6.0, 0.0, NO),  # at most -A * 3
        (5.0, 2.0, 3.0, -2.6, 0.0, YES),
    ],
)
def test_the_clipped_surrogate(ratio, advantage, dual, loss, gradient, clipped):
    ratio = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor(advantage, dtype=torch.float64)
    found, where = estimators.clipped_surrogate(ratio, advantage, 0.1, 0.3, dual)
    found.backward()
    assert (found.item(), ratio.grad.item()) == pytest.approx((loss, gradient))
    assert bool(where) is clipped


def test_a_value_that_moved_too_far_counts_as_if_it_had_not():
    # Old 0, clip 1: 3 counts as 1 where that is further from the return.
    values, old = rows([3.0, 3.0, 0.5]), rows([0.0, 0.0, 0.0])
    returns = rows([4.0, 0.0, 1.0])
    found, where = estimators.clipped_value_loss(
        values, old, returns, 1.0, lambda a, b: (a - b).square()
    )
    assert found.tolist() == [[9.0, 9.0, 0.25]]
    assert where.tolist() == [[YES, NO, NO]]


def test_estimates_of_the_divergence_of_two_distributions():
    # KL(q || p) of two coins, as the mean over q: k1 and k3 are without bias.
    q, p = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    logratio = (p / q).log()
    exact = float((q * (q / p).log()).sum())
    for estimate in (estimators.k1, estimators.k3):
        assert float((q * estimate(logratio)).sum()) == pytest.approx(exact)
    assert estimators.k2(torch.tensor(3.0)).item() == 4.5
    assert estimators.k3(torch.tensor([-100.0, 100.0])).isfinite().all()
