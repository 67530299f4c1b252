"""Statistics equal NumPy's over all data, whatever the batches, and scale what they should."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.errors import RunError
from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.core.tensordict.collect.normalisation import (
    ObservationNormaliser,
    RewardNormaliser,
    RunningStatistics,
)


def through_a_checkpoint(state):
    encoder = Encoder()
    return decode(encoder.encode(state), encoder.tensors)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_statistics_are_those_of_all_rows(sizes, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal([5e3, -2, 0], [1e-1, 3, 1e4], (sum(sizes) + 1, 3)).astype(np.float32)
    statistics = RunningStatistics([3])
    for part in np.split(rows, np.cumsum(sizes)):
        statistics.update(part)
    np.testing.assert_allclose(statistics.mean, rows.mean(0, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(statistics.variance, rows.astype(np.float64).var(0), rtol=1e-9)


def test_rows_that_are_not_valid_are_left_out():
    statistics = RunningStatistics([2])
    values = np.array([[[1, 10], [np.nan, np.inf]], [[3, 30], [5, 50]]])
    statistics.update(values, np.array([[True, False], [True, True]]))
    assert statistics.count == 3
    np.testing.assert_allclose(statistics.mean, [3, 30])
    np.testing.assert_allclose(statistics.variance, [8 / 3, 800 / 3])


def test_observations_have_mean_0_and_variance_1_after_the_first_update():
    rng = np.random.default_rng(0)
    observation = rng.normal([100, -3], [20, 0.01], (50, 4, 2)).astype(np.float32)
    normaliser = ObservationNormaliser([2])
    np.testing.assert_array_equal(normaliser.normalise(observation), observation)
    normaliser.update(observation)
    scaled = normaliser.normalise(observation)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean((0, 1)), 0, atol=2e-4)
    np.testing.assert_allclose(scaled.std((0, 1)), 1, atol=1e-3)


def test_a_constant_number_is_not_blown_up():
    normaliser = ObservationNormaliser([2])
    normaliser.update(np.array([[0.0, 1.0], [0.0, 3.0]]))
    np.testing.assert_allclose(normaliser.normalise(np.array([[0.0, 2.0]])), 0)
    # A number that was constant so far and differs now is far off, but bounded.
    assert normaliser.normalise(np.array([[5.0, 2.0]]))[0, 0] == 10


def test_statistics_stay_while_nothing_is_updated():
    normaliser = ObservationNormaliser([1])
    normaliser.update(np.array([[0.0], [2.0]]))
    first = normaliser.normalise(np.array([[3.0]]))
    normaliser.normalise(np.full((100, 1), 50.0))
    np.testing.assert_array_equal(normaliser.normalise(np.array([[3.0]])), first)


def returns_of(reward, done, valid, gamma):
    """Each step's reward plus what went before it in its episode, one row after the other."""
    numbers = []
    for n in range(reward.shape[1]):
        carried = 0.0
        for t in range(len(reward)):
            if valid[t, n]:
                carried = gamma * carried + float(reward[t, n])
                numbers.append(carried)
            if done[t, n]:
                carried = 0.0
    return np.array(numbers)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=3), st.integers(0, 99))
def test_rewards_are_divided_by_the_deviation_of_all_returns(cuts, seed):
    rng = np.random.default_rng(seed)
    reward = rng.normal(2, 3, (30, 3)).astype(np.float32)
    done, valid = rng.random((30, 3)) < 0.2, rng.random((30, 3)) < 0.8
    valid[0, 0] = True
    normaliser = RewardNormaliser(3, 0.9, clip=1e9)
    np.testing.assert_array_equal(normaliser.normalise(reward), reward)
    for part in np.split(np.arange(30), sorted(cuts)):
        normaliser.update(reward[part], done[part], valid[part])
    returns = returns_of(reward, done, valid, 0.9)
    deviation = np.sqrt(returns.var() + 1e-8)
    np.testing.assert_allclose(normaliser.normalise(reward), reward / deviation, rtol=1e-5)


def test_rewards_are_bounded():
    normaliser = RewardNormaliser(2, 0.0, clip=2.0)
    normaliser.update(np.array([[-1.0, 1.0]]), np.zeros((1, 2), bool))
    scaled = normaliser.normalise(np.array([[-9.0, 1.0, 9.0]]))
    np.testing.assert_allclose(scaled, [[-2, 1, 2]], rtol=1e-6)


def test_a_resumed_normaliser_goes_on_as_it_would_have():
    rng = np.random.default_rng(1)
    reward, done = rng.normal(size=(40, 2)), rng.random((40, 2)) < 0.1
    whole, first, second = (RewardNormaliser(2, 0.9) for _ in range(3))
    seen, resumed = ObservationNormaliser([2]), ObservationNormaliser([2])
    for part in (slice(0, 17), slice(17, 40)):
        whole.update(reward[part], done[part])
    first.update(reward[:17], done[:17])
    second.load_state_dict(through_a_checkpoint(first.state_dict()))
    second.update(reward[17:], done[17:])
    np.testing.assert_array_equal(second.normalise(reward), whole.normalise(reward))
    seen.update(reward)
    resumed.load_state_dict(through_a_checkpoint(seen.state_dict()))
    np.testing.assert_array_equal(resumed.normalise(reward), seen.normalise(reward))


def test_a_state_of_another_shape_is_refused():
    with pytest.raises(RunError, match=r"of shape \[2\], the scenario gives \[3\]; resume with"):
        ObservationNormaliser([3]).load_state_dict(ObservationNormaliser([2]).state_dict())
    with pytest.raises(RunError, match="of 2 environments, the scenario has 4; resume with"):
        RewardNormaliser(4, 0.9).load_state_dict(RewardNormaliser(2, 0.9).state_dict())


def test_returns_begin_anew_with_all_episodes():
    one, other = RewardNormaliser(1, 0.9), RewardNormaliser(1, 0.9)
    reward, done = np.array([[8.0], [1.0]]), np.zeros((2, 1), bool)
    for part in (slice(0, 1), slice(1, 2)):
        one.update(reward[part], done[part])
        one.begin()
        other.update(reward[part], ~done[part])
    np.testing.assert_array_equal(one.normalise(reward), other.normalise(reward))
    assert one.statistics.mean == pytest.approx(4.5)
