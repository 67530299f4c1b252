"""What a run in phases says: the run's steps everywhere, with the phase named."""

import math
import re
import shutil

import pytest
import torch

from plugrl.core.errors import NonFiniteError, RunError
from plugrl.core.experiment import prepare, resume, start
from plugrl.core.run.checkpoints.checkpoint import load

LEARN = {"type": "self_hosted_cross_entropy", "total_train_steps": 2}
REINFORCE = {"type": "self_hosted_grpo", "total_train_steps": 3}


@pytest.fixture
def tree(config):
    def make(second=REINFORCE, **sections):
        phases = [
            {"name": "learn", "rollout_worker": {"type": "demonstration"}, "trainer": LEARN},
            {"name": "reinforce", "trainer": second},
        ]
        trainer = {"total_train_steps": None, "phases": phases}
        return config("sequence", trainer=trainer, **sections)

    return make


@pytest.mark.integration
def test_progress_counts_the_steps_of_the_phase_and_the_log_those_of_the_run_too(
    tree, capfd, caplog
):
    caplog.set_level("INFO", "plugrl")
    start(prepare(tree(settings={"progress": "plain"})))
    # The second phase begins with its own first validation, step 3 of the run, which is no step
    # of training.
    bars = [line.split("  ")[0] for line in capfd.readouterr().err.splitlines() if "/" in line]
    assert [b for b in bars if b.startswith("learn")] == ["learn: 2/2"]
    assert [b for b in bars if b.startswith("reinforce")] == ["reinforce: 3/3"]
    said = [m for m in caplog.messages if "validation/reward" in m]
    assert [m.split(": v")[0] for m in said] == [
        *(f"learn: step {step}" for step in range(3)),
        *(f"reinforce: step {step} (step {step + 3} of the run)" for step in range(4)),
    ]


def test_a_guard_of_a_later_phase_names_the_step_of_the_run(tree, registry):
    calls = []

    def poisoned(logp, batch, config):
        calls.append(1)
        return logp * (math.nan if len(calls) == 2 else 1.0), {}

    registry.register("loss", "poisoned", poisoned)
    second = {**REINFORCE, "algorithm": {"loss": "poisoned"}}
    with pytest.raises(NonFiniteError, match=r"^phase reinforce: .* in step 5; .*step-00000005"):
        start(prepare(tree(second, runtime_monitor={"dead_coefficients": "ignore"})))


def test_the_last_metrics_are_those_of_the_last_phase(tree, registry):
    run = start(prepare(tree()))
    first = {name for line in run.metrics if line["phase"] == 1 for name in line}
    last = [line for line in run.metrics if line["phase"] == 2]
    assert "train/log_prob" in first
    assert "train/log_prob" not in run.last_metrics
    assert set(run.last_metrics) == {name for line in last for name in line}
    assert run.last_metrics["step"] == 6
    assert re.fullmatch(r"step-\d+", sorted((run.folder / "checkpoints").iterdir())[-1].name)


@pytest.fixture
def taught(config):
    """A model that the first phase trains and the second learns from."""

    def make(**teacher_later):
        source = config()["models"]["policy"]["source"]
        learner = {"source": source, "train": {"type": "local", "learning_rate": 0.01}}
        teacher = {"source": {**source, "seed": 5}}
        phases = [
            {
                "name": "teacher",
                "models": {"teacher": {**teacher, "train": learner["train"]}},
                "rollout_worker": {"type": "demonstration", "model": "teacher"},
                "trainer": LEARN,
            },
            {
                "name": "student",
                "models": {"policy": learner, "teacher": {**teacher, **teacher_later}},
                "trainer": {"type": "self_hosted_opd", "total_train_steps": 2},
            },
        ]
        tree = config("sequence", trainer={"total_train_steps": None, "phases": phases})
        tree["models"] = {"teacher": teacher, "policy": {"source": source}}
        return tree

    return make


def state_of(run, step):
    return load(run.folder / "checkpoints" / f"step-{step:08d}")["trainer"]["child"]["models"]


def test_a_model_keeps_what_an_earlier_phase_taught_it(taught):
    run = start(prepare(taught()))
    learnt = state_of(run, 2)["teacher"]["state"]["weights"]
    kept = state_of(run, 5)["teacher"]["weights"]
    assert all(torch.equal(learnt[name], kept[name]) for name in learnt)
    assert "state" in state_of(run, 5)["policy"]


@pytest.mark.integration
def test_a_resumed_phase_goes_on_with_the_taught_model(taught):
    run = start(prepare(taught()))
    whole = run.metrics[-1]
    shutil.rmtree(run.folder / "checkpoints" / "step-00000005")
    again = resume(run.folder).metrics[-1]
    assert again["step"] == whole["step"] == 5
    assert again["train/teacher_kl"] == whole["train/teacher_kl"]


def test_a_frozen_model_of_another_shape_is_one_line(taught):
    other = dict(taught()["models"]["teacher"]["source"])
    other["config"] = {**other["config"], "num_hidden_layers": 2}
    with pytest.raises(RunError, match=r"^phase student: frozen model 'teacher' does not fit .*"):
        start(prepare(taught(source=other)))
