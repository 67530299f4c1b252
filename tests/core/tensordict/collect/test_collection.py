"""Every number of a batch, against what was counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from plugrl.core.tensordict.collect.collector import Collector
from plugrl.core.tensordict.collect.normalisation import Normalisers
from tests.core.tensordict.counting import Always, Counting


def collector(environment: Counting, steps: int, **scaled: Any) -> Collector:
    policy_of = dict.fromkeys(environment.spaces, "shared")
    rows = environment.num_envs * len(policy_of)
    options: dict[str, Any] = {"observations": False, "rewards": False, "gamma": 0.5, **scaled}
    normalisers = Normalisers({"shared": (1,)}, {"shared": rows}, **options)
    actor: Any = Always(1)
    made = Collector(
        environment, policy_of, {"shared": actor}, steps=steps, normalisers=normalisers
    )
    made.begin(0)
    return made


def seen(batch: Any, *keys: str) -> list[list[float]]:
    value = batch[keys if len(keys) > 1 else keys[0]]
    return value.reshape(batch.batch_size).tolist()


def test_what_follows_the_last_step_of_an_episode_is_its_own_end() -> None:
    batch = collector(Counting([2, 3]), 4).collect()["shared"]
    assert batch.batch_size == torch.Size([2, 4])
    assert seen(batch, "observation") == [[0, 1, 0, 1], [0, 1, 2, 0]]
    assert seen(batch, "next", "observation") == [[1, 2, 1, 2], [1, 2, 3, 1]]
    assert seen(batch, "next", "reward") == [[1, 2, 1, 2], [1, 2, 3, 1]]
    assert seen(batch, "next", "terminated") == [[0, 1, 0, 1], [0, 0, 1, 0]]
    assert seen(batch, "next", "done") == [[0, 1, 0, 1], [0, 0, 1, 0]]
    assert seen(batch, "valid") == [[1, 1, 1, 1], [1, 1, 1, 1]]
    assert seen(batch, "action") == [[1] * 4] * 2
    assert seen(batch, "action_log_prob") == [[-0.5] * 4] * 2


def test_a_cut_off_episode_is_done_and_not_terminated() -> None:
    batch = collector(Counting([2], truncated=True), 3).collect()["shared"]
    assert seen(batch, "next", "done") == [[0, 1, 0]]
    assert seen(batch, "next", "terminated") == [[0, 0, 0]]


def test_a_step_that_only_begins_anew_is_not_valid() -> None:
    made = collector(Counting([2, 3], next_step=True), 5)
    batch = made.collect()["shared"]
    assert seen(batch, "observation") == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert seen(batch, "next", "observation") == [[1, 2, 0, 1, 2], [1, 2, 3, 0, 1]]
    assert seen(batch, "valid") == [[1, 1, 0, 1, 1], [1, 1, 1, 0, 1]]
    assert seen(batch, "next", "done") == [[0, 1, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert made.total_frames == 8
    assert made.statistics.take() == {"agent": [(3.0, 2), (6.0, 3), (3.0, 2)]}


def test_batches_go_on_where_the_last_one_ended() -> None:
    made = collector(Counting([5]), 3)
    assert seen(made.collect()["shared"], "observation") == [[0, 1, 2]]
    assert seen(made.collect()["shared"], "observation") == [[3, 4, 0]]
    assert made.statistics.take() == {"agent": [(15.0, 5)]}


def test_agents_with_one_policy_are_rows_of_one_batch() -> None:
    made = collector(Counting([2, 3], agents=("left", "right")), 2)
    batch = made.collect()["shared"]
    assert batch.batch_size == torch.Size([4, 2])
    assert seen(batch, "next", "reward") == [[1, 2], [1, 2], [1, 2], [1, 2]]
    assert seen(batch, "next", "done") == [[0, 1], [0, 0], [0, 1], [0, 0]]
    assert made.statistics.take() == {"left": [(3.0, 2)], "right": [(3.0, 2)]}


def test_the_first_batch_is_scaled_by_the_statistics_of_the_warm_up() -> None:
    made = collector(Counting([2, 3]), 4, observations=True, rewards=True)
    made.warm_up(8, seed=0)
    made.begin(0)
    batch = made.collect()["shared"]
    raw = np.array([[0, 1, 0, 1], [0, 1, 2, 0]], float)
    expected = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(batch["observation"].squeeze(-1), expected, rtol=1e-5)
    # Returns with discount 0.5: 1, 2.5 | 1, 2.5 and 1, 2.5, 4.25 | 1.
    returns = np.array([1, 2.5, 1, 2.5, 1, 2.5, 4.25, 1])
    rewards = np.array([[1, 2, 1, 2], [1, 2, 3, 1]]) / returns.std()
    np.testing.assert_allclose(batch["next", "reward"].squeeze(-1), rewards, rtol=1e-5)
    assert made.total_frames == 8


# Of Counting([5]) with discount 0.5, the returns of three steps from the beginning.
RETURNS = [1, 2.5, 4.25]


def test_a_warm_up_scales_rewards_though_observations_stay() -> None:
    made = collector(Counting([5]), 3, rewards=True)
    made.warm_up(3, seed=0)
    made.begin(0)
    batch = made.collect()["shared"]
    assert seen(batch, "observation") == [[0, 1, 2]]
    expected = np.array([[1, 2, 3]]) / np.std(RETURNS)
    np.testing.assert_allclose(batch["next", "reward"].squeeze(-1), expected, rtol=1e-5)


def test_without_anything_to_scale_nothing_is_warmed_up() -> None:
    made = collector(Counting([5]), 3)
    made.collect()
    made.warm_up(30, seed=0)
    assert seen(made.collect()["shared"], "observation") == [[3, 4, 0]]


def test_returns_begin_anew_with_the_episodes() -> None:
    made = collector(Counting([5]), 3, rewards=True)
    for _ in range(2):
        made.begin(0)
        made.collect()
    made.begin(0)
    expected = np.array([[1, 2, 3]]) / np.std(RETURNS * 2)
    rewards = made.collect()["shared"]["next", "reward"]
    np.testing.assert_allclose(rewards.squeeze(-1), expected, rtol=1e-5)


def test_steps_that_only_begin_an_episode_count_for_no_budget() -> None:
    # Episodes of 1 and 3 steps and a step to begin anew: of 4 steps, 2 and 3 are real, or 2 and 4.
    made = collector(
        Counting([1, 3], next_step=True, agents=("left", "right")), 4, observations=True
    )
    made.begin(0)
    made.collect()
    assert (made.batch_steps, made.reset_steps) == (2 + 3, 3)
    drawn = made.normalisers.update
    batches = []
    made.normalisers.update = lambda *given: (batches.append(1), drawn(*given))[1]
    made.warm_up(10, seed=0)
    # Two batches are 10 real steps; 10 of any kind were there after one and a half.
    assert len(batches) == 2
    made.warm_up(11, seed=0)
    assert len(batches) == 2 + 3


@pytest.mark.parametrize("next_step", [False, True])
def test_a_loaded_collector_gives_what_the_saved_one_would_have(next_step: bool) -> None:
    def make() -> Collector:
        environment = Counting([2, 5], next_step=next_step)
        return collector(environment, 3, observations=True, rewards=True)

    one, other = make(), make()
    one.collect()
    one.statistics.take()
    state = one.state_dict()
    other.collect()
    other.collect()
    assert other.load_state_dict(state, seed=7)
    left, right = one.collect()["shared"], other.collect()["shared"]
    assert bool((left == right).all())
    assert one.statistics.take() == other.statistics.take()
    assert one.frames == other.frames


def test_environments_that_cannot_be_saved_begin_anew() -> None:
    made = collector(Counting([5], saveable=False), 3)
    made.collect()
    state = made.state_dict()
    assert state["environment"] is None
    assert made.load_state_dict(state, seed=7) is False
    assert seen(made.collect()["shared"], "observation") == [[0, 1, 2]]
