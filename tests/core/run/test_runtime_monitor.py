"""What failed attempts mean for a run, and worker processes that give no sign of life."""

from __future__ import annotations

import logging

import pytest

from plugrl.core.config.schemas.sections import ExceptionHandlingConfig, RuntimeMonitorConfig
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, start
from plugrl.core.run.guards import Guards
from plugrl.testing import tiny

JUDGE = """
import os, signal, time
from plugrl import EvaluationRunResult, Evaluator

class Judge(Evaluator):
    def evaluate(self, data, evaluation_target):
        flag = os.environ.get("JUDGE_FLAG", "")
        how = os.environ.get("JUDGE")
        if how == "always" or (how == "once" and not os.path.exists(flag)):
            open(flag, "w").close()
            raise OSError("the judge is down")
        if how == "slow" and not os.path.exists(flag):
            open(flag, "w").close()
            time.sleep(7)  # Longer than a check of signs of life.
        if how == "stop" and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)
        return EvaluationRunResult(reward=float(len(evaluation_target.final_answer)))
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGE_FLAG", str(tmp_path / "flag"))
    (tmp_path / "judge.py").write_text(JUDGE)
    worker = {"evaluator": None, "evaluator_module_path": "judge.py:Judge"}
    tree = tiny.config("self_hosted_grpo", tmp_path, {"validate": {"enabled": False}})
    tree["rollout_worker"] |= worker
    del tree["rollout_worker"]["evaluator"]
    return tree


def monitored(tree, **monitor):
    return start(prepare({**tree, "runtime_monitor": monitor}))


def policy(name, **more):
    return {"exception_handling": {"policy": name, **more}}


@pytest.mark.integration
def test_one_failed_attempt_ends_the_run_where_errors_stop_it(tree, monkeypatch):
    monkeypatch.setenv("JUDGE", "once")
    with pytest.raises(RunError, match="1 of .* attempts failed in step 1: .*the judge is down"):
        monitored(tree, **policy("stop_on_error"))


@pytest.mark.integration
def test_one_failed_attempt_is_left_out_otherwise(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE", "once")
    for name in ("stop_on_critical", "continue"):
        (tmp_path / "flag").unlink(missing_ok=True)
        run = monitored(tree, **policy(name))
        assert run.status["state"] == "done"
        assert sum(line.get("rollout/invalid", 0) for line in run.metrics) > 0


@pytest.mark.integration
def test_a_failed_attempt_of_the_validation_counts_too(tree, monkeypatch):
    monkeypatch.setenv("JUDGE", "once")
    tree["validate"] = {"data": {"data_files": tree["data"]["data_files"]}}
    with pytest.raises(RunError, match="attempts failed in step 0"):
        monitored(tree, **policy("stop_on_error"))


@pytest.mark.integration
def test_a_run_without_one_valid_attempt(tree, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE", "always")
    with pytest.raises(RunError, match="no reward was valid in 1 steps in a row"):
        monitored(tree, max_invalid_steps=1, **policy("stop_on_critical"))
    for monitor in (policy("continue"), policy("stop_on_error", enabled=False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            run = monitored(tree, max_invalid_steps=1, **monitor)
        assert run.status["state"] == "done"
        assert "so nothing was learned" in caplog.text


@pytest.mark.integration
def test_without_a_word_a_single_failure_is_no_end():
    guards = Guards(RuntimeMonitorConfig())
    guards.rewards(1, [1.0, 0.0], [True, False], reason="x")
    strict = Guards(
        RuntimeMonitorConfig(exception_handling=ExceptionHandlingConfig(policy="stop_on_error"))
    )
    strict.rewards(1, [1.0, 0.0], [True, True])
    with pytest.raises(RunError, match="1 of 2 attempts failed in step 2: x "):
        strict.rewards(2, [1.0, 0.0], [True, False], reason="x")


@pytest.mark.integration
@pytest.mark.parametrize("trainer", ["self_hosted_grpo", "sequence"])
def test_the_keys_survive_the_folder_of_the_run(tmp_path, trainer):
    from plugrl.trainers.sequence import SequenceTrainer

    sections = SequenceTrainer.conformance if trainer == "sequence" else {}
    tree = tiny.config(trainer, tmp_path, {**sections, "validate": {"enabled": False}})
    tree["settings"]["checkpoint_every"] = 0
    monitor = {"health_check": {"enabled": True, "timeout": 7}, **policy("continue")}
    run = start(prepare({**tree, "runtime_monitor": monitor}))
    again = run.config["runtime_monitor"]
    assert (again.health_check.timeout, again.exception_handling.policy) == (7, "continue")


@pytest.mark.integration
def test_a_process_that_gives_no_sign_of_life_is_replaced(tree, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE", "stop")
    tree["rollout_worker"]["processes"] = 1
    # One that works gives signs more often than this on a busy machine too.
    health = {"enabled": True, "check_interval": 0.2, "timeout": 5}
    with caplog.at_level(logging.WARNING):
        run = monitored(tree, health_check=health)
    assert sum(line.get("rollout/worker_restarts", 0) for line in run.metrics) == 1
    assert "was ended because it gave no sign of life for 5 seconds while it" in caplog.text
    assert sum(line.get("rollout/invalid", 0) for line in run.metrics) == 0


@pytest.mark.integration
def test_processes_that_work_are_left_alone(tree, monkeypatch):
    monkeypatch.setenv("JUDGE", "slow")
    tree["rollout_worker"]["processes"] = 2
    health = {"enabled": True, "check_interval": 0.05, "timeout": 5}
    run = monitored(tree, health_check=health)
    assert sum(line.get("rollout/worker_restarts", 0) for line in run.metrics) == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("exception_handling.policy=stop", "must be one of"),
        (
            "exception_handling.check_interval=10",
            "a failure is known when it happens; leave it out",
        ),
        ("health_check.check_interval=0", "must be above 0"),
        ("health_check.timeout=0.1", "must be at least 1"),
        ("health_check.interval=1", "unknown key"),
        ("rollout_progress_monitor.update_interval=1", "unknown key: write settings.progress"),
        ("rollout_progress_monitor.enabled=1", "must be true or false, not 1"),
    ],
)
def test_values_that_mean_nothing(word, line):
    with pytest.raises(ConfigError) as caught:
        prepare("sft", [f"runtime_monitor.{word}"])
    (fault,) = caught.value.faults
    assert line in fault
    assert fault.startswith("runtime_monitor.")


@pytest.mark.integration
@pytest.mark.parametrize(("written", "progress"), [("true", "auto"), ("false", "none")])
def test_whether_progress_is_shown(written, progress):
    word = f"runtime_monitor.rollout_progress_monitor.enabled={written}"
    assert prepare("sft", [word]).validated.tree["settings"]["progress"] == progress
