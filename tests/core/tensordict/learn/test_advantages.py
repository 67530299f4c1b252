"""Advantages that are written into batches."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE

from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage, RewardToGo


class Worth(torch.nn.Module):
    """An agent that values a state at its number."""

    def value(self, observation):
        return observation.squeeze(-1) * 1.0

    def forward(self, observation):
        return self.value(observation).unsqueeze(-1)


def batch_of(observation, following, reward, done=(), terminated=(), valid=None):
    """One environment; ``done`` and ``terminated`` name the steps."""
    steps = len(reward)

    def flags(which):
        return torch.tensor([t in which for t in range(steps)]).reshape(1, steps, 1)

    def numbers(values):
        return torch.tensor(values, dtype=torch.float32).reshape(1, steps, 1)

    valid = torch.ones(1, steps, dtype=torch.bool) if valid is None else torch.tensor([valid])
    return TensorDict(
        {
            "observation": numbers(observation),
            "valid": valid,
            "next": {
                "observation": numbers(following),
                "reward": numbers(reward),
                "done": flags({*done, *terminated}),
                "terminated": flags(terminated),
            },
        },
        batch_size=[1, steps],
    )


def test_generalised_advantages_by_hand():
    # Step 1 is cut off at a state worth 6, step 2 terminates: as in the tests of gae with gamma and
    # lambda 1/2, A = 2.5, 4 and 4 - 2 = 2.
    batch = batch_of([0, 1, 2], [1, 6, 9], [1, 2, 4], done=[1], terminated=[2])
    metrics = GeneralisedAdvantage(Worth(), 0.5, 0.5)(batch)
    assert batch["advantage"].flatten().tolist() == [2.5, 4.0, 2.0]
    assert batch["state_value"].flatten().tolist() == [0.0, 1.0, 2.0]
    assert batch["value_target"].flatten().tolist() == [2.5, 5.0, 4.0]
    assert batch["advantage"].shape == (1, 3, 1)
    expected = 1 - np.var([2.5, 4.0, 2.0]) / np.var([2.5, 5.0, 4.0])
    assert metrics == {"explained_variance": pytest.approx(expected)}


def test_the_last_step_of_a_batch_is_worth_what_it_led_to():
    """The episode goes on; nothing else in the batch has its last observation."""
    batch = batch_of([0, 1], [1, 6], [1, 2])
    GeneralisedAdvantage(Worth(), 0.5, 0.5)(batch)
    # delta_1 = 2 + 6 / 2 - 1 = 4; delta_0 = 1 + 1 / 2 - 0 = 1.5; A_0 = 1.5 + 4 / 4.
    assert batch["advantage"].flatten().tolist() == [2.5, 4.0]
    assert batch["value_target"].flatten().tolist() == [2.5, 5.0]
    both = torch.cat([batch_of([2, 0], [0, -4], [1, 2]), batch_of([0, 1], [1, 6], [1, 2])])
    GeneralisedAdvantage(Worth(), 0.5, 0.0)(both)
    assert both["advantage"].squeeze(-1).tolist() == [[-1.0, 0.0], [1.5, 4.0]]


def test_the_last_of_several_own_steps_says_whether_the_episode_goes_on():
    """Own steps at 0 and 1, then others move until the batch ends in a state worth 8."""
    batch = batch_of([0, 1, 9, 9], [1, 9, 9, 8], [1, 2, 4, 8], valid=[True, True, False, False])
    batch["acting"] = torch.tensor([[True, True, False, False]])
    batch["waiting"] = ~batch["acting"]
    GeneralisedAdvantage(Worth(), 0.5, 0.5)(batch)
    # Step 1: 2 + (4 + (8 + 8 / 2) / 2) / 2 - 1 = 6; step 0: 1 + 1 / 2 - 0 + 6 / 4 = 3.
    assert batch["advantage"].flatten().tolist() == [3.0, 6.0, 0.0, 0.0]


def test_steps_that_are_not_valid_do_not_count():
    spoilt = batch_of(
        [0, 1, float("nan"), 2],
        [1, 6, float("nan"), 9],
        [1, 2, float("nan"), 4],
        done=[1],
        terminated=[3],
        valid=[True, True, False, True],
    )
    alone = batch_of([0, 1, 2], [1, 6, 9], [1, 2, 4], done=[1], terminated=[2])
    one, other = (GeneralisedAdvantage(Worth(), 0.5, 0.5)(batch) for batch in (spoilt, alone))
    assert one == other
    assert spoilt["advantage"][spoilt["valid"]].flatten().tolist() == [2.5, 4.0, 2.0]
    RewardToGo(0.5)(spoilt)
    assert spoilt["advantage"][spoilt["valid"]].flatten().tolist() == [2.0, 2.0, 4.0]


@pytest.mark.parametrize("ends", [True, False])
def test_equals_torchrl(ends):
    rng = np.random.default_rng(0)
    observation = rng.normal(size=41).cumsum()
    done, terminated = [3, 9, 10, 25], [17, 30, *([39] if ends else [])]
    following = observation[1:].copy()
    following[[*done, *terminated]] += 1
    ours = batch_of(observation[:-1], following, rng.normal(size=40), done, terminated)
    theirs = ours.clone()
    GeneralisedAdvantage(Worth(), 0.9, 0.8)(ours)
    critic = ValueOperator(Worth(), in_keys=["observation"])
    GAE(gamma=0.9, lmbda=0.8, value_network=critic)(theirs)
    for name in ("advantage", "value_target", "state_value"):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5)


def test_rewards_to_go_by_hand():
    batch = batch_of([0, 0, 0, 0], [0, 0, 0, 0], [1, 2, 4, 8], done=[1])
    assert RewardToGo(0.5)(batch) == {}
    assert batch["advantage"].tolist() == [[[2.0], [2.0], [8.0], [8.0]]]
