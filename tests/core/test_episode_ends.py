"""Advantages and rewards to go, across ends of every sort."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torchrl.objectives.value.functional import generalized_advantage_estimate, reward2go

from plugrl.core import estimators
from tests.core.by_time import by_time


def gae(reward, value, next_value, terminated, done, gamma, lmbda, valid=None):
    ends = {"next_values": next_value, "terminated": terminated, "done": done}
    return by_time(estimators.gae, reward, value, gamma, lmbda, **ends, valid=valid)


def reward_to_go(reward, done, gamma, valid=None):
    return by_time(estimators.discounted_sum, reward, gamma, done=done, valid=valid)


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def test_gae_of_an_episode_that_terminates():
    # gamma 1/2, lambda 1/2: delta_2 = 4 - 2 = 2; delta_1 = 2 + 2/2 - 1 = 2; delta_0 = 1 + 1/2 - 0
    # = 1.5; A_2 = 2, A_1 = 2 + 2/4 = 2.5, A_0 = 1.5 + 2.5/4 = 2.125. The 100 behind it is no value.
    advantage = gae(
        column(1, 2, 4),
        column(0, 1, 2),
        column(1, 2, 100),
        column(0, 0, 1, dtype=bool),
        column(0, 0, 1, dtype=bool),
        0.5,
        0.5,
    )
    assert advantage.dtype == np.float32
    assert advantage[:, 0].tolist() == [2.125, 2.5, 2.0]


def test_gae_of_an_episode_that_is_cut_off_in_the_middle():
    # Step 1 is truncated at a state worth 6: delta_1 = 2 + 3 - 1 = 4, and nothing of step 2, whose
    # own delta is 4 + 4 - 2 = 6 (the batch ends at a state worth 8). A_0 = 1.5 + 4/4 = 2.5.
    advantage = gae(
        column(1, 2, 4),
        column(0, 1, 2),
        column(1, 6, 8),
        column(0, 0, 0, dtype=bool),
        column(0, 1, 0, dtype=bool),
        0.5,
        0.5,
    )
    assert advantage[:, 0].tolist() == [2.5, 4.0, 6.0]


def test_gae_passes_over_a_step_that_is_not_valid():
    # Without step 1 these are two steps with values 0 and 2: A_1 = 2, A_0 = 1 + 1/2 + 2/4 = 2.
    advantage = gae(
        column(1, np.nan, 4),
        column(0, np.nan, 2),
        column(1, np.nan, 100),
        column(0, 0, 1, dtype=bool),
        column(0, 0, 1, dtype=bool),
        0.5,
        0.5,
        column(1, 0, 1, dtype=bool),
    )
    assert advantage[:, 0].tolist() == [2.0, 0.0, 2.0]


def test_reward_to_go_stops_at_each_end():
    reward, done = column(1, 2, 4, 8), column(0, 1, 0, 0, dtype=bool)
    assert reward_to_go(reward, done, 0.5)[:, 0].tolist() == [2.0, 2.0, 8.0, 8.0]


def test_a_step_that_is_not_valid_is_passed_over_unless_it_ends_the_episode():
    reward, valid = column(1, 2, 4), np.array([[True], [False], [True]])
    passed = reward_to_go(reward, np.zeros((3, 1), bool), 0.5, valid)
    assert passed.ravel().tolist() == [3.0, 0.0, 4.0]
    ended = reward_to_go(reward, np.array([[False], [True], [False]]), 0.5, valid)
    assert ended.ravel().tolist() == [1.0, 0.0, 4.0]


def close(answer, expected):
    """Equal but for rounding: sums are not added up in the same order."""
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-4)


@st.composite
def batches(draw):
    steps, count = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    shape = (steps, count)
    number = st.floats(-8, 8, width=16)
    real = {
        name: draw(arrays(np.float32, shape, elements=number))
        for name in ("reward", "value", "next_value")
    }
    flag = arrays(bool, shape, elements=st.sampled_from([False, False, True]))
    terminated, truncated = draw(flag), draw(flag)
    return {**real, "terminated": terminated, "done": terminated | truncated}


def by_episode(batch, gamma, lmbda):
    """Equation 16 as a double sum, for each episode on its own, in float64."""
    steps, count = batch["done"].shape
    answer = np.zeros((steps, count))
    for n in range(count):
        ends = [*np.flatnonzero(batch["done"][:, n]), steps - 1]
        for t in range(steps):
            end = min(e for e in ends if e >= t)
            for k in range(t, end + 1):
                ahead = 0.0 if batch["terminated"][k, n] else float(batch["next_value"][k, n])
                delta = float(batch["reward"][k, n]) + gamma * ahead - float(batch["value"][k, n])
                answer[t, n] += (gamma * lmbda) ** (k - t) * delta
    return answer


@settings(max_examples=30, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.8, 1.0]))
def test_gae_is_that_of_each_episode_on_its_own(batch, gamma, lmbda):
    answer = gae(**batch, gamma=gamma, lmbda=lmbda)
    np.testing.assert_allclose(answer, by_episode(batch, gamma, lmbda), atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(batches(), st.data())
def test_nothing_leaks_across_an_end(batch, data):
    ends = np.argwhere(batch["done"][:-1])
    if not len(ends):
        return
    t, n = ends[data.draw(st.integers(0, len(ends) - 1))]
    before = gae(**batch, gamma=0.9, lmbda=0.8)[: t + 1, n]
    back = reward_to_go(batch["reward"], batch["done"], 0.9)[: t + 1, n]
    for name in ("reward", "value", "next_value"):
        batch[name][t + 1 :, n] = 1e6
    np.testing.assert_array_equal(gae(**batch, gamma=0.9, lmbda=0.8)[: t + 1, n], before)
    np.testing.assert_array_equal(
        reward_to_go(batch["reward"], batch["done"], 0.9)[: t + 1, n], back
    )


@settings(max_examples=20, deadline=None)
@given(batches(), st.data())
def test_steps_that_are_not_valid_are_as_if_they_were_not_there(batch, data):
    steps, count = batch["done"].shape
    where = data.draw(arrays(np.int64, count, elements=st.integers(0, steps)))
    longer = {name: np.zeros((steps + 1, count), array.dtype) for name, array in batch.items()}
    valid = np.ones((steps + 1, count), bool)
    for n, place in enumerate(where):
        valid[place, n] = False
        for name, array in batch.items():
            longer[name][:, n] = np.insert(array[:, n], place, 0 if array.dtype == bool else np.nan)
    expected = gae(**batch, gamma=0.9, lmbda=0.8)
    answer = gae(**longer, gamma=0.9, lmbda=0.8, valid=valid)
    assert (answer[~valid] == 0).all()
    close(answer.T[valid.T], expected.T.reshape(-1))
    expected = reward_to_go(batch["reward"], batch["done"], 0.9)
    answer = reward_to_go(longer["reward"], longer["done"], 0.9, valid)
    close(answer.T[valid.T], expected.T.reshape(-1))


@settings(max_examples=20, deadline=None)
@given(batches())
def test_whole_returns_less_values_are_advantages_at_lambda_one(batch):
    # What was cut off, by truncation or at the end of the batch, goes on with its value.
    cut = batch["done"].copy()
    cut[-1] = True
    cut &= ~batch["terminated"]
    reward = np.where(cut, batch["reward"] + np.float32(0.9) * batch["next_value"], batch["reward"])
    whole = reward_to_go(reward, batch["done"], 0.9)
    # Between ends the values of successive steps must be one number for the sums to telescope.
    batch["next_value"][:-1] = np.where(
        batch["done"][:-1], batch["next_value"][:-1], batch["value"][1:]
    )
    answer = gae(**batch, gamma=0.9, lmbda=1.0)
    np.testing.assert_allclose(answer, whole - batch["value"], atol=1e-3)


@settings(max_examples=15, deadline=None)
@given(batches())
def test_both_equal_those_of_torchrl(batch):
    by_row = {
        name: torch.from_numpy(np.ascontiguousarray(array.T)).unsqueeze(-1)
        for name, array in batch.items()
    }
    theirs, _ = generalized_advantage_estimate(
        0.9,
        0.8,
        by_row["value"],
        by_row["next_value"],
        by_row["reward"],
        by_row["done"],
        by_row["terminated"],
    )
    ours = gae(**batch, gamma=0.9, lmbda=0.8)
    np.testing.assert_allclose(ours.T, theirs.squeeze(-1).numpy(), atol=1e-4)
    theirs = reward2go(by_row["reward"], by_row["done"], 0.9)
    ours = reward_to_go(batch["reward"], batch["done"], 0.9)
    np.testing.assert_allclose(ours.T, theirs.squeeze(-1).numpy(), atol=1e-4)
