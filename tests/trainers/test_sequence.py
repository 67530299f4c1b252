"""What a run in phases says: the run's steps everywhere, with the phase named."""

import math
import re

import pytest

from plugrl.core.errors import NonFiniteError
from plugrl.core.experiment import prepare, start

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


def test_progress_and_log_name_the_phase_and_count_the_run(tree, capfd, caplog):
    caplog.set_level("INFO", "plugrl")
    start(prepare(tree(settings={"progress": "plain"})))
    # The second phase begins with its own first validation, step 3 of the run.
    bars = [line.split("  ")[0] for line in capfd.readouterr().err.splitlines() if "/" in line]
    assert [b for b in bars if b.startswith("learn")] == ["learn: Training: 2/2"]
    assert [b for b in bars if b.startswith("reinforce")] == ["reinforce: Training: 6/6"]
    said = [m for m in caplog.messages if "validation/reward" in m]
    assert [m.split(": v")[0] for m in said] == [
        f"{phase}: step {step}" for step in range(7) for phase in [["learn", "reinforce"][step > 2]]
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
