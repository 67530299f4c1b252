"""GRPO advantages against values worked by hand."""

import math

import pytest
import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import compute, for_trajectories, group_numbers
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.self_hosted_grpo import GrpoConfig, grpo

CONFIG = GrpoConfig(epsilon=0.0)


def advantages(rewards, groups, runs, valid=None, config=CONFIG):
    valid = [True] * len(rewards) if valid is None else valid
    return grpo(
        torch.tensor(rewards),
        group_numbers(groups),
        torch.tensor(runs),
        torch.tensor(valid),
        None,
        config,
    ).tolist()


def test_a_group_of_two():
    # mean 0.5, sample deviation sqrt(0.5): (1 - 0.5) / 0.7071 = 0.7071
    assert advantages([1.0, 0.0], "aa", [0, 1]) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_epsilon_is_added_to_the_deviation():
    config = GrpoConfig(epsilon=0.1)
    expected = 0.5 / (math.sqrt(0.5) + 0.1)
    assert advantages([1.0, 0.0], "aa", [0, 1], config=config) == pytest.approx(
        [expected, -expected]
    )


def test_equal_rewards_have_no_advantage():
    assert advantages([0.3, 0.3, 0.3], "aaa", [0, 1, 2], config=GrpoConfig()) == [0.0, 0.0, 0.0]


def test_a_group_of_one_has_no_advantage():
    assert advantages([5.0], "a", [0], config=GrpoConfig()) == [0.0]


def test_several_trajectories_of_a_run_share_its_mean():
    # Run 0 has the rewards 1 and 3 (mean 2), run 1 has 0: group mean 1, deviation sqrt(2).
    expected = [1 / math.sqrt(2), 1 / math.sqrt(2), -1 / math.sqrt(2)]
    assert advantages([1.0, 3.0, 0.0], "aaa", [0, 0, 1]) == pytest.approx(expected)


def test_one_run_of_several_trajectories_is_finite():
    assert advantages([1.0, 0.0], "aa", [0, 0], config=GrpoConfig()) == [0.0, 0.0]


def test_an_invalid_member_counts_nowhere():
    # Without the invalid 100 the group is [1, 0].
    result = advantages([1.0, 100.0, 0.0], "aaa", [0, 1, 2], [True, False, True])
    assert result == pytest.approx([math.sqrt(0.5), 0.0, -math.sqrt(0.5)])


def test_nothing_valid():
    assert advantages([1.0, 2.0], "aa", [0, 1], [False, False]) == [0.0, 0.0]


def test_groups_do_not_mix_and_order_does_not_matter():
    rewards, groups, runs = [1.0, 10.0, 0.0, 30.0], "abab", [0, 0, 1, 1]
    straight = advantages(rewards, groups, runs)
    half = math.sqrt(0.5)
    assert straight == pytest.approx([half, -half, -half, half])
    order = [2, 3, 1, 0]
    shuffled = advantages(
        [rewards[i] for i in order], [groups[i] for i in order], [runs[i] for i in order]
    )
    assert shuffled == pytest.approx([straight[i] for i in order])


def test_without_normalisation():
    config = GrpoConfig(normalize=False)
    assert advantages([3.0, 1.0, 2.0], "aaa", [0, 1, 2], config=config) == [1.0, -1.0, 0.0]


def rollouts():
    return [
        Trajectory([5, 6, 7], [0, 1, 1], reward=reward, group_id=group, run_id=run)
        for group, run, reward in [("a", 0, 1.0), ("a", 1, 0.0), ("b", 0, 2.0), ("b", 1, 2.0)]
    ]


def test_trajectories_and_batches_agree():
    batch = Batch.from_trajectories(rollouts())
    expected = compute(grpo, batch, CONFIG).tolist()
    assert [t.advantage for t in for_trajectories(grpo, rollouts(), CONFIG)] == expected


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda rows: torch.zeros(rows + 1), r"shape \(5,\)"),
        (lambda rows: torch.zeros(rows, 2), r"shape \(4, 2\)"),
        (lambda rows: torch.full((rows,), math.nan), "not finite"),
    ],
)
def test_a_wrong_answer_is_named(answer, complaint):
    def strange(rewards, *rest):
        return answer(len(rewards))

    with pytest.raises(ValueError, match=complaint):
        compute(strange, Batch.from_trajectories(rollouts()), None)
