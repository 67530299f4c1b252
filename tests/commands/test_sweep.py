"""``plugrl sweep``: every combination is trained, and the table is right."""

import json
import statistics

import pytest
import yaml

import plugrl
from plugrl.core import sweep
from plugrl.core.errors import ConfigError, UsageError
from plugrl.testing import tiny


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("a.b=1,2", ("a.b", ["1", "2"])),
        ("a=[1,2],[3]", ("a", ["[1,2]", "[3]"])),
        ("a='x,y',z", ("a", ["'x,y'", "z"])),
        ("a={b: 1, c: 2}", ("a", ["{b: 1, c: 2}"])),
        ("a=1", ("a", ["1"])),
        ("a=", ("a", [""])),
    ],
)
def test_values(word, expected):
    assert sweep.parse_axis(word) == expected


@pytest.mark.parametrize("word", ["a", "=1,2", "a=1,,2", "a=1,1", "a=1,"])
def test_values_that_cannot_be_read(word):
    with pytest.raises(UsageError):
        sweep.parse_axis(word)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text(yaml.safe_dump(tiny.config("self_hosted_grpo", tmp_path)))
    return path


def test_a_sweep_trains_the_grid_and_its_table_has_mean_and_deviation(file):
    steps = "trainer.total_train_steps=1,2"
    plan = sweep.plan_runs(file, [steps, "data.rollout_repeat_n=2,3"], 2)
    assert [(p.varied["trainer.total_train_steps"], p.varied["data.rollout_repeat_n"], p.seed)
            for p in plan] == [(a, b, s) for a in "12" for b in "23" for s in (0, 1)]  # fmt: skip
    plan = sweep.plan_runs(file, [steps, "data.rollout_repeat_n=2"], 2)
    rows = sweep.table(sweep.train_runs(plan), ["rollout/response_length"])
    assert [row["seeds"] for row in rows] == [2, 2]
    for row in rows:
        runs = [plugrl.load_run(folder) for folder in row["runs"]]
        steps = int(row["trainer.total_train_steps"])
        assert [run.status["step"] for run in runs] == [steps, steps]
        values = [run.last_metrics["rollout/response_length"] for run in runs]
        assert row["rollout/response_length"] == pytest.approx(statistics.mean(values))
        assert row["rollout/response_length sd"] == pytest.approx(statistics.stdev(values))


def test_all_combinations_are_checked_before_the_first_run(file, tmp_path):
    with pytest.raises(ConfigError, match="total_train_steps=-1"):
        sweep.plan_runs(file, ["trainer.total_train_steps=1,-1"], 1)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("grid", "seeds", "said"),
    [
        (["seed=1,2"], 2, "name the seeds twice"),
        (["seed=1", "seed=2"], 1, "repeated"),
        ([f"seed={','.join(map(str, range(1001)))}"], 1, "1001 runs"),
    ],
)
def test_sweeps_that_are_slips(file, grid, seeds, said):
    with pytest.raises(UsageError, match=said):
        sweep.plan_runs(file, grid, seeds)


@pytest.mark.integration
def test_a_run_that_fails_is_listed_and_the_others_go_on(file, tmp_path, capsys):
    from plugrl.cli import main

    (tmp_path / "judge.py").write_text(
        "from plugrl import Evaluator, EvaluationRunResult\n"
        "class Judge(Evaluator):\n"
        "    def evaluate(self, data, evaluation_target):\n"
        "        raise RuntimeError('broken')\n"
    )
    broken = f"{tmp_path / 'judge.py'}:Judge"
    tree = yaml.safe_load(file.read_text())
    worker = {k: v for k, v in tree["rollout_worker"].items() if k != "evaluator"}
    file.write_text(yaml.safe_dump(tree | {"rollout_worker": worker}))
    words = ["sweep", str(file), f"rollout_worker.evaluator=exact_match,{{path: {broken}}}"]
    words[2] = f"rollout_worker={{evaluator: exact_match}},{{evaluator_module_path: '{broken}'}}"
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"])
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert end.value.code == 1
    # Each run is announced by what tells it apart, before its folder.
    starts = ("info: rollout_worker={", "info: run folder")
    said = [start for line in printed.err.splitlines() for start in starts if start in line]
    assert said == [*starts, *starts]
    assert [(row["seeds"], row["failed"]) for row in rows] == [(1, 0), (0, 1)]


@pytest.mark.integration
def test_an_unknown_metric_costs_no_table(file, capsys):
    from plugrl.cli import main

    with pytest.raises(SystemExit) as end:
        main(["sweep", str(file), "seed=0,1", "--metric", "train/los", "--metric", "sync/no"])
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert out.splitlines()[0].split() == ["SEEDS", "FAILED", "train/los", "sync/no"]
    said = "no run has a metric 'train/los'; they have: "
    lines = [line for line in err.splitlines() if said in line]
    # As a warning after the first of two runs, and at the end.
    assert [line.split(":")[0] for line in lines] == ["warning", "error"]
    assert all("did you mean train/loss?" in line for line in lines)
    begins = [i for i, line in enumerate(err.splitlines()) if "run folder" in line]
    assert begins[0] < err.splitlines().index(lines[0]) < begins[1]


# The run of one step has 16 attempts, with its validations.
JUDGE = """
import os
import signal

from plugrl import EvaluationRunResult, Evaluator

calls = 0


class Judge(Evaluator):
    def evaluate(self, data, evaluation_target):
        global calls
        calls += 1
        if calls == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return EvaluationRunResult(reward=0.0)
"""


def test_an_interrupted_sweep_shows_what_ended_before(file, call, tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE)
    tree = yaml.safe_load(file.read_text())
    del tree["rollout_worker"]["evaluator"]
    tree["rollout_worker"]["evaluator_module_path"] = f"{tmp_path / 'judge.py'}:Judge"
    file.write_text(yaml.safe_dump(tree))
    code, out, err = call("sweep", "exp.yaml", "--json", "trainer.total_train_steps=1,50")
    assert code == 130, err
    (row,) = json.loads(out)
    assert (row["trainer.total_train_steps"], row["seeds"], row["failed"]) == ("1", 1, 0)
    assert err.splitlines()[-1].startswith("plugrl resume ")


def rows_of(folder, **last_metrics):
    """A table without ``--metric`` of one run that ended with these metrics."""
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, **last_metrics}) + "\n")
    (folder / "status.json").write_text('{"state": "done", "step": 1}')
    (folder / "config.yaml").write_text("{}")
    planned = sweep.PlannedRun("exp.yaml", {}, (), (), 0)
    return sweep.table([sweep.FinishedRun(planned, plugrl.load_run(folder))], [])


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (["train/loss", "rollout/reward", "validation/reward"], ["validation/reward"]),
        (["train/loss", "rollout/reward"], ["rollout/reward"]),
        (
            ["rollout/mean_episode_return", "validation/mean_episode_return",
             "validation/left/mean_episode_return", "train/loss_critic"],
            ["validation/mean_episode_return"],
        ),
        (["rollout/accuracy", "validation/accuracy/hard", "validation/accuracy"],
         ["validation/accuracy"]),
        (["rollout/mean_episode_return", "rollout/left/mean_episode_return"],
         ["rollout/mean_episode_return"]),
        (["train/loss", "train/log_prob"], ["train/loss"]),
        (["rollout/frames"], []),
    ],
)  # fmt: skip
def test_the_table_shows_what_each_kind_of_trainer_is_for(tmp_path, metrics, expected):
    (row,) = rows_of(tmp_path, **dict.fromkeys(metrics, 2.5))
    assert [name for name in row if "/" in name] == expected
    assert all(row[name] == 2.5 for name in expected)
