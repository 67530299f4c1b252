"""GRPO between agents: an agent's reward is compared with its own alone."""

import pytest

from plugrl.core.errors import RunError
from plugrl.core.text.batch import Batch
from plugrl.core.text.trajectory import Trajectory
from plugrl.trainers.grpo_pure_text import GrpoPureTextTrainer


def said(agent, run, reward, group="g"):
    return Trajectory(
        tokens=[1, 2, 3],
        loss_mask=[0, 1, 1],
        logprobs=[0.0, -0.5, -0.5],
        versions=[-1, 0, 0],
        reward=reward,
        group_id=group,
        run_id=run,
        extra_fields={} if agent is None else {"agent": agent},
    )


def test_groups_are_by_problem_and_agent():
    # By hand: within each agent the rewards are 0 and 1, or 10 and 12; their deviations are
    # 2**-0.5 and 2**0.5, so that both give -+0.7071 (arXiv 2402.03300).
    batch = Batch.from_trajectories(
        [said("a", 0, 0.0), said("b", 0, 10.0), said("a", 1, 1.0), said("b", 1, 12.0)]
    )
    batch, _ = GrpoPureTextTrainer({})._prepare_batch(batch)
    found = batch.metadata["advantages"].tolist()
    assert found == pytest.approx([-(0.5**0.5), -(0.5**0.5), 0.5**0.5, 0.5**0.5], rel=1e-4)
    assert batch.metadata["group_id"] == ["g"] * 4


def test_trajectories_that_belong_to_nobody_are_refused():
    batch = Batch.from_trajectories([said(None, 0, 0.0), said(None, 1, 1.0)])
    with pytest.raises(RunError, match="no field 'agent'"):
        GrpoPureTextTrainer({})._prepare_batch(batch)
