import functools
import json
import math

import numpy as np
import pytest
import torch

from plugrl.core.config.schemas.sections import RuntimeMonitorConfig
from plugrl.core.errors import NonFiniteError, RunError
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.guards import Guards


@pytest.mark.parametrize(
    "value",
    [math.nan, torch.tensor([1.0, math.inf]), np.array([math.nan]), {"a": [1, (-math.inf,)]}],
)
def test_non_finite_values_stop_and_dump_the_batch(tmp_path, value):
    guards = Guards(RuntimeMonitorConfig(), tmp_path)
    batch = {"tokens": torch.tensor([[1, 2]]), "note": {"fn": len}}
    with pytest.raises(NonFiniteError, match="grad norm is not finite in step 7; the batch is in"):
        guards.check_finite("grad norm", value, step=7, batch=batch)
    dumped = checkpoint.load(tmp_path / "step-00000007-grad-norm")
    assert dumped["batch"]["tokens"].tolist() == [[1, 2]]
    assert dumped["batch"]["note"] == {"fn": "<built-in function len>"}


def test_finite_values_pass():
    guards = Guards()
    assert guards.check_finite("x", {"a": torch.ones(2), "b": [1, 2.5]}, step=1)
    assert guards.check_finite("x", torch.ones(2, dtype=torch.int64), step=1)


def test_skipping_counts_steps_and_ends_after_too_many_in_a_row():
    guards = Guards(RuntimeMonitorConfig(non_finite="skip", max_skipped_steps=3))
    for step in (1, 2, 2, 4, 5):
        assert guards.check_finite("loss", math.nan, step=step) is False
    assert guards.skipped == 4
    copy = Guards(guards.policy)
    copy.load_state_dict(guards.state_dict())
    for each in (guards, copy):
        with pytest.raises(RunError, match="not finite in 3 steps in a row, up to step 6"):
            each.check_finite("loss", math.nan, step=6)


def test_steps_without_a_valid_reward_end_the_run():
    guards = Guards(RuntimeMonitorConfig(max_invalid_steps=2))
    guards.rewards(1, [0.0, math.nan], [False, False])
    guards.rewards(2, torch.tensor([1.0, math.nan]), torch.tensor([True, False]))
    guards.rewards(3, [0.0], [False])
    with pytest.raises(RunError, match="no reward was valid in 2 steps in a row, up to step 4"):
        guards.rewards(4, [0.0], [False])


def test_what_happened_in_a_row_is_counted_on_after_a_resume(caplog):
    """Of each count the copy has the one that the guards had, and stops at the same step."""
    policy = RuntimeMonitorConfig(max_invalid_steps=3, dead_reward_steps=3)

    def resumed(guards):
        copy = Guards(policy)
        copy.load_state_dict(json.loads(json.dumps(guards.state_dict())))
        return copy

    guards = Guards(policy)
    guards.rewards(1, [0.0], [False])
    guards.rewards(2, [0.0], [False])
    for each in (resumed(guards), guards):
        with pytest.raises(RunError, match="in 3 steps in a row, up to step 3"):
            each.rewards(3, [0.0], [False])
    guards = Guards(policy)
    for step in (1, 2):
        guards.rewards(step, [0.5, 0.5], [True, True])
    guards = resumed(guards)
    assert "all rewards were equal" not in caplog.text
    guards.rewards(3, [0.5, 0.5], [True, True])
    assert caplog.text.count("all rewards were equal in 3 steps in a row, up to step 3") == 1
    # Nor is it told again.
    resumed(guards).rewards(4, [0.5, 0.5], [True, True])
    assert caplog.text.count("all rewards were equal") == 1


def test_one_valid_reward_of_a_step_ends_a_row_and_one_alone_is_not_equal(caplog):
    guards = Guards(RuntimeMonitorConfig(dead_reward_steps=1, max_invalid_steps=2))
    guards.rewards(1, [0.0], [False])
    guards.rewards(2, [1.0], [True])
    guards.rewards(3, [0.0], [False])
    # A step without trajectories, such as of another model, says nothing of validity.
    guards.rewards(4, [], [])
    guards.rewards(5, [0.0], [False])
    assert "all rewards were equal" not in caplog.text
    with pytest.raises(RunError, match="in 2 steps in a row, up to step 6"):
        guards.rewards(6, [0.0], [False])


def test_equal_rewards_warn_once(caplog):
    guards = Guards(RuntimeMonitorConfig(dead_reward_steps=2))
    for step, rewards in enumerate(([1, 1], [0, 1], [1, 1], [1, 1], [1, 1]), start=1):
        guards.rewards(step, rewards, [True, True])
        assert caplog.text.count("all rewards were equal in 2 steps in a row") == (step >= 4)


def test_wrong_shapes_lengths_and_valid_nan_rewards_are_named():
    guards = Guards()
    with pytest.raises(RunError, match=r"rewards have shape \(2, 1\)"):
        guards.rewards(1, torch.ones(2, 1), [True, True])
    with pytest.raises(RunError, match="3 rewards and 2 validity marks"):
        guards.rewards(1, [1, 2, 3], [True, True])
    with pytest.raises(RunError, match="rewards must be numbers"):
        guards.rewards(1, ["good"], [True])
    with pytest.raises(NonFiniteError, match="reward is not finite in step 1"):
        guards.rewards(1, [1.0, math.nan], [True, True])


def test_a_training_shorter_than_the_limit_is_refused_when_no_reward_was_valid():
    guards = Guards(RuntimeMonitorConfig(max_invalid_steps=3))
    guards.any_valid(0)
    guards.rewards(1, [0.0], [False], reason="judge is down")
    guards.rewards(2, [0.0], [False], reason="judge is down")
    with pytest.raises(RunError, match="valid in any of 2 steps.*judge is down"):
        guards.any_valid(2)
    guards.any_valid(3)  # one step of three had a valid reward
    guards.rewards(3, [1.0], [True])
    guards.any_valid(3)


@pytest.mark.parametrize("absurd", [float("nan"), float("inf"), -1e30])
def test_what_is_not_finite_is_laid_to_absurd_rewards(absurd):
    guards = Guards()
    rewards, valid = [0.5, float("nan"), 1.0, absurd], [True, False, True, True]
    if math.isfinite(absurd):
        guards.rewards(1, rewards, valid)
        check = functools.partial(guards.check_finite, "loss", math.nan, step=1)
    else:
        check = functools.partial(guards.rewards, 1, rewards, valid)
    with pytest.raises(NonFiniteError) as caught:
        check()
    said = f"its rewards are the likely cause: trajectory 3 of 4 has {absurd:g}; "
    assert said in str(caught.value)
    guards.rewards(2, [0.5, 1.0], [True, True])
    with pytest.raises(NonFiniteError, match="lower the learning rate"):
        guards.check_finite("loss", float("nan"), step=2)
