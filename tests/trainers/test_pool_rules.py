"""What a run makes of the pool's rules: when it trains, on how much, and when it gives up."""

import os
import signal
from pathlib import Path

import pytest

import plugrl
from plugrl.core.config.plan import batch_plan
from plugrl.core.errors import ConfigError, RunError, RunTerminated
from plugrl.core.experiment import prepare, resume
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.trajectory import Trajectory
from plugrl.testing import tiny
from plugrl.testing.comparison import assert_equal_states, comparable_metrics
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer


@pytest.fixture
def trained(monkeypatch):
    """The group ids of every training batch."""
    seen = []
    plain = SelfHostedGrpoTrainer.train_step

    def watched(self, trajectories):
        seen.append([t.group_id for t in trajectories])
        return plain(self, trajectories)

    monkeypatch.setattr(SelfHostedGrpoTrainer, "train_step", watched)
    return seen


def pooled(config, steps=3, **pool):
    # Two prompts of four attempts are loaded at once.
    tree = config()
    tree["trajectory_pool"] = pool
    tree["trainer"]["total_train_steps"] = steps
    tree["validate"] = {"enabled": False}
    return tree


def test_both_rules_gather_two_loaded_batches_for_each_step(config, trained):
    rule = "batch_size_reached_and_loaded_batch_finished"
    run = plugrl.train(pooled(config, check_batch_ready_function=rule, batch_size=16))
    assert [len(batch) for batch in trained] == [16, 16, 16]
    # Four problems: each step has seen every one of them, and none of a step again.
    assert [len(set(batch)) for batch in trained] == [4, 4, 4]
    assert run.last_metrics["pool/waiting"] == 0


def test_a_smaller_batch_leaves_groups_for_the_next_step(config, trained):
    tree = pooled(config, check_batch_ready_function="batch_size", batch_size=4)
    tree["weight"] = {"staleness_threshold": 1}
    run = plugrl.train(tree)
    assert [len(batch) for batch in trained] == [4, 4, 4]
    assert len({group for batch in trained for group in batch}) == 3
    assert [line["pool/waiting"] for line in run.metrics[1:]] == [4, 0, 4]


def test_what_waited_too_long_is_dropped_and_counted(config, trained):
    tree = pooled(config, check_batch_ready_function="batch_size", batch_size=4)
    tree["data"]["batch_size"] = 4
    tree["weight"] = {"staleness_threshold": 1}
    run = plugrl.train(tree)
    # Four groups of version 0: two are used in time, two are dropped before step 3.
    assert [line["pool/stale"] for line in run.metrics[1:]] == [0, 0, 8]
    assert len(trained[2]) == 4


def test_waiting_trajectories_are_part_of_a_checkpoint(config):
    tree = pooled(config, 5, check_batch_ready_function="batch_size", batch_size=4)
    tree["weight"] = {"staleness_threshold": 1}
    whole = plugrl.train(tree)

    class Terminated:
        @plugrl.hookimpl
        def plugrl_step_end(self, step):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    tree["settings"]["runs_folder"] += "-stopped"
    with pytest.raises(RunTerminated):
        tiny.train(tree, Terminated())
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/[0-9]*")
    resumed = resume(folder)
    assert comparable_metrics(resumed) == comparable_metrics(whole)
    assert_equal_states(resumed.checkpoint()["trainer"], whole.checkpoint()["trainer"])


def test_a_data_column_can_be_a_key(config, trained):
    # Two of the four problems share each answer.
    tree = pooled(config, 1, key_list=["answer"])
    tree["data"]["batch_size"] = 4
    plugrl.train(tree)
    (batch,) = trained
    index = [int(group.split("/")[1]) // 2 for group in batch]
    assert index in ([0] * 8 + [1] * 8, [1] * 8 + [0] * 8)


def test_groups_that_never_become_complete_end_the_run_with_a_reason(config):
    tree = pooled(
        config,
        key_list=["prompt"],
        group_size=1000,
        batch_size=8,
        check_batch_ready_function="batch_size",
    )
    message = (
        r"20 loaded batches completed no group, so no training batch gets ready "
        r"\(trajectory_pool\): model 'policy' has 160 trajectories in 4 groups, 0 of them in "
        r"complete groups of 1000, and a batch needs 8"
    )
    with pytest.raises(RunError, match=message):
        plugrl.train(tree)


def test_a_worker_that_feeds_no_trained_model_ends_the_run(config, registry):
    class Watcher(RolloutWorker):
        def rollout(self, task):
            return Trajectory(
                [0, 1], [0, 0], model="judge", group_id=task.group_id, run_id=task.run_id
            )

    registry.register("rollout_worker", "watcher", Watcher)
    tree = pooled(config)
    tree["models"]["judge"] = {"source": tree["models"]["policy"]["source"]}
    tree["rollout_worker"] = {"type": "watcher"}
    with pytest.raises(RunError, match=r"model 'policy' has 0 trajectories in 0 groups"):
        plugrl.train(tree)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"group_size": 5}, "rollout_repeat_n=4 times, so no group of 5 attempts can become"),
        (
            {"batch_size": 12, "check_batch_ready_function": "batch_size_reached"},
            "8 trajectories are loaded at once.*multiple of 8",
        ),
        (
            {"check_batch_ready_function": "batch_size"},
            "check_batch_ready_function batch_size needs batch_size, such as 64; best is "
            "data.batch_size times data.rollout_repeat_n",
        ),
        ({"check_batch_ready_function": "bach_size"}, "batch_size"),
        ({"batch_size": 0}, "batch_size.*: must be at least 1"),
    ],
)
def test_sizes_that_cannot_work_are_refused_before_the_run(config, pool, message):
    tree = pooled(config, **pool)
    with pytest.raises(ConfigError, match=message):
        plugrl.train(tree)
    assert not list(Path(tree["settings"]["runs_folder"]).glob("*/*"))


def test_the_plan_counts_what_is_loaded_and_what_is_trained_on(config):
    tree = pooled(config, 3, check_batch_ready_function="batch_size", batch_size=16)
    plan = dict(batch_plan(prepare(tree).validated))
    assert plan["sequences loaded at once"] == "2 x 4 = 8"
    assert plan["sequences a step, at least"] == "16"
    assert plan["sequences in all"] == "48"
