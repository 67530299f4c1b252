"""What a set of rollouts says in numbers."""

from plugrl.core.text.rollout.metrics import rollout_metrics
from plugrl.core.text.trajectory import Trajectory


def test_the_reward_is_a_mean_over_attempts_however_long_each_is():
    """Runs 0 and 1 have rewards 1 and 0; the first has three trajectories."""
    made = [
        Trajectory([1], [1], reward=reward, group_id="a", run_id=run)
        for run, reward, count in ((0, 1.0, 3), (1, 0.0, 1))
        for _ in range(count)
    ]
    made[0].metrics["turns"] = 3.0
    made[3].metrics["turns"] = 1.0
    metrics = rollout_metrics(made)
    assert metrics["rollout/reward"] == 0.5
    assert metrics["rollout/turns"] == 2.0
