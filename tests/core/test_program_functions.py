"""Whole runs with reward functions and callbacks of a Python program."""

import json
import logging
import os
import signal

import forking
import kills
import pytest

import plugrl
from plugrl.testing import tiny

pytestmark = pytest.mark.integration


def length(completions, **kwargs):
    return [len(c) / 3 for c in completions]


def first(prompts, completions, answer):
    rows = zip(completions, answer, strict=True)
    return [float(c[:1] == a) for c, a in rows]


def config(folder, **sections):
    return tiny.config("self_hosted_grpo", folder, {"validate": {"enabled": False}, **sections})


def numbers(run):
    return [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in run.metrics
    ]


def test_a_list_with_weights_rewards_every_answer(tmp_path):
    run = plugrl.train(config(tmp_path), reward=[length, first], reward_weights=[1.0, 0.5])
    assert run.result.steps == 2
    for line in run.metrics[1:]:
        expected = line["rollout/length"] + 0.5 * line["rollout/first"]
        assert line["rollout/reward"] == pytest.approx(expected)


def test_a_function_of_a_file_is_named_in_yaml(tmp_path):
    (tmp_path / "judges.py").write_text(
        "async def half(completions, **kwargs):\n    return [0.5 for _ in completions]\n"
    )
    picks = {
        "evaluator": None,
        "evaluator_module_path": f"{tmp_path / 'judges.py'}:half",
    }
    tree = config(tmp_path)
    tree["rollout_worker"] = {"max_response_length": 3, **picks}
    del tree["rollout_worker"]["evaluator"]
    inside = plugrl.train(tree)
    assert [line["rollout/reward"] for line in inside.metrics[1:]] == [0.5, 0.5]
    # Functions of files are there in worker processes, too.
    apart = plugrl.train(tree, ["rollout_worker.processes=2"])
    assert [line["rollout/reward"] for line in apart.metrics[1:]] == [0.5, 0.5]


def test_processes_do_not_have_the_functions_of_a_program(tmp_path):
    with pytest.raises(plugrl.ConfigError) as caught:
        plugrl.train(config(tmp_path), ["rollout_worker.processes=2"], reward=length)
    assert "rollout_worker.evaluator_module_path=FILE.py:length" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_column_that_the_function_needs_is_looked_up_before_the_run(tmp_path):
    def needs(completions, solution):
        return [0.0] * len(completions)

    with pytest.raises(plugrl.ConfigError, match="has no column 'solution'"):
        plugrl.train(config(tmp_path), reward=needs)
    assert not (tmp_path / "runs").exists()


def test_a_callback_ends_the_run(tmp_path):
    def stop(step, metrics):
        if metrics.get("rollout/length", 0) >= 0 and step == 1:
            raise plugrl.StopRun("enough")

    run = plugrl.train(config(tmp_path), reward=length, callbacks=[stop])
    assert (run.status["state"], run.result.steps, len(run.metrics)) == ("done", 1, 2)


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path):
    def interrupt(step, metrics):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    rewards = {"reward": [length, first], "reward_weights": [1.0, 0.5]}
    whole = plugrl.train(config(tmp_path), **rewards)
    with pytest.raises(plugrl.PlugrlError):
        plugrl.train(config(tmp_path), **rewards, callbacks=[interrupt])
    stopped = plugrl.load_run("latest", tmp_path / "runs")
    assert stopped.status["state"] == "terminated"

    with pytest.raises(plugrl.UsageError, match=r"reward=\[length, first\]\), or put them in a"):
        plugrl.resume(stopped)
    done = plugrl.resume(str(stopped.folder), reward=[length, first])
    assert numbers(done) == numbers(whole)
    assert done.result.steps == 2
    # There is nothing left to do, and so no function is asked for.
    assert plugrl.resume(stopped).folder == stopped.folder


def plugrl_command(*words, folder):
    return forking.run(["-m", "plugrl", *words], cwd=folder, libraries=kills.LIBRARIES)


def test_other_processes_say_where_the_function_is_and_take_it_from_a_file(tmp_path):
    def interrupt(step, metrics):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    held_out = {"data": {"data_files": [str(tmp_path / "problems.jsonl")]}, "every": 2}
    tree = config(tmp_path, validate=held_out)
    with pytest.raises(plugrl.PlugrlError):
        plugrl.train(tree, reward=length, callbacks=[interrupt])
    run = str(plugrl.load_run("latest", tmp_path / "runs").folder)
    (entry,) = [
        e
        for e in json.loads((tmp_path / run / "plugins.lock.json").read_text())
        if e["source"] == "argument"
    ]
    assert entry["name"] == "length"

    refused = plugrl_command("resume", run, folder=tmp_path)
    assert refused.returncode == 2
    assert f"plugrl.resume('{run}', reward=length)" in refused.stderr
    assert "plugrl -p FILE.py resume" in refused.stderr
    judged = plugrl_command("eval", run, "validation", folder=tmp_path)
    assert "plugrl -p FILE.py eval" in judged.stderr
    # What asks for no reward works without it.
    (tmp_path / "prompts.txt").write_text("ab\n")
    exported = plugrl_command("export", run, str(tmp_path / "model"), folder=tmp_path)
    assert exported.returncode == 0, exported.stderr

    (tmp_path / "rewards.py").write_text(
        "import plugrl\n\n\n@plugrl.register_evaluator('length')\n"
        "def length(completions, **kwargs):\n    return [len(c) / 3 for c in completions]\n"
    )
    resumed = plugrl_command("-p", "rewards.py", "resume", run, folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


def test_a_failing_callback_does_not_end_the_run(tmp_path, caplog):
    def fails(step, metrics):
        raise ValueError("oh")

    with caplog.at_level(logging.WARNING):
        run = plugrl.train(config(tmp_path), callbacks=[fails])
    assert run.status["state"] == "done"
    assert "callback fails: hook plugrl_step_end failed: ValueError: oh" in caplog.text
