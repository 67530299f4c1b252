"""Curricula and dropped groups in whole runs."""

import json

import pytest

import plugrl
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, resume
from plugrl.testing.comparison import assert_equal_states, comparable_metrics


def judged(tmp_path, body):
    (tmp_path / "judge.py").write_text(
        "from plugrl import EvaluationRunResult, Evaluator\n\n"
        "class Judge(Evaluator):\n"
        "    def evaluate(self, data, evaluation_target):\n"
        f"        return EvaluationRunResult(reward={body})\n"
    )
    return {"evaluator": None, "evaluator_module_path": f"{tmp_path / 'judge.py'}:Judge"}


def problems(tmp_path, rows):
    path = tmp_path / "levels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


ROWS = [{"prompt": p, "answer": "a", "level": n} for n, p in enumerate(("a", "b", "ab", "ba"))]


@pytest.mark.integration
def test_a_curriculum_opens_buckets_and_resumes_bit_for_bit(config, tmp_path):
    sections = {
        "data": {
            "data_files": problems(tmp_path, ROWS),
            "curriculum": {"column": "level", "edges": [2], "advance_at": 0.5, "window": 2},
        },
        "validate": {"enabled": False},
        "rollout_worker": judged(
            tmp_path,
            "1.0 if len(data['prompt']) == 1 else float(len(evaluation_target.final_answer) > 1)",
        ),
        "trainer": {"total_train_steps": 4},
        "runtime_monitor": {"dead_coefficients": "ignore"},
    }
    whole = plugrl.train(config(**sections))
    opened = [line["data/open_buckets"] for line in whole.metrics if "data/open_buckets" in line]
    assert opened == [2, 2, 2, 2]
    states = [whole.checkpoint()["trainer"]["loader"]["open"]]
    assert states == [2]

    stopped = config(**sections)
    stopped["trainer"]["total_train_steps"] = 2
    first = plugrl.train(stopped)
    text = (first.folder / "config.yaml").read_text()
    (first.folder / "config.yaml").write_text(
        text.replace("total_train_steps: 2", "total_train_steps: 4")
    )
    status = first.folder / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"state": "interrupted"}))
    resumed = resume(first.folder)
    assert comparable_metrics(resumed) == comparable_metrics(whole)
    assert_equal_states(resumed.checkpoint()["trainer"], whole.checkpoint()["trainer"])


def test_equal_groups_are_dropped_and_more_is_loaded(config, tmp_path):
    """Half of the problems give equal rewards: a step loads until a batch of others is there."""
    rows = [{"prompt": p, "answer": "a", "level": 0} for p in ("a", "b")]
    reward = "0.5 if data['prompt'] == 'a' else float(len(evaluation_target.final_answer) % 2)"
    run = plugrl.train(
        config(
            data={
                "data_files": problems(tmp_path, rows),
                "batch_size": 1,
                "rollout_repeat_n": 8,
                "shuffle": False,
            },
            validate={"enabled": False},
            rollout_worker=judged(tmp_path, reward),
            trajectory_pool={
                "drop_equal_groups": True,
                "batch_size": 16,
                "check_batch_ready_function": "batch_size",
            },
        )
    )
    steps = [line for line in run.metrics if "train/loss" in line]
    assert len(steps) == 2
    for line in steps:
        # Two groups of "b" are trained on; those of "a" in between were dropped.
        assert line["pool/equal_groups"] >= 2
        assert line["train/zero_advantage"] == 0


def test_a_run_in_which_every_group_is_equal_ends_and_says_why(config, tmp_path):
    tree = config(
        validate={"enabled": False},
        rollout_worker=judged(tmp_path, "1.0"),
        trajectory_pool={"drop_equal_groups": True, "max_idle_batches": 3},
    )
    with pytest.raises(
        RunError, match=r"3 loaded batches.*6 groups were dropped for equal rewards"
    ):
        plugrl.train(tree)


def test_rules_of_data_are_checked_before_a_run_begins(config, tmp_path):
    rows = problems(tmp_path, ROWS)
    for data, said in (
        ({"keep": {"nosuch": [0, 1]}}, "nosuch"),
        ({"curriculum": {"column": "nosuch"}}, "nosuch"),
    ):
        with pytest.raises(ConfigError, match=said):
            prepare(config(data={"data_files": rows, **data}))
    assert not (tmp_path / "runs").exists()
