"""The quickstart learns what it says it learns; and its recipe runs two steps in seconds."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import kills
import pytest
from curves import SEEDS, assert_reached
from waiting import CURVES

from plugrl.core.experiment import load_run


def trained(folder: Path, *overrides: str):
    """Run the recipe in ``folder`` and give its run and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "plugrl", "train", "quickstart", *overrides],
        cwd=folder,
        env=dict(os.environ),
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (run,) = folder.glob("runs/quickstart/*")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return load_run(run), seconds


def held_out(run, phase):
    """The accuracies of one phase on the held-out problems, in order."""
    key = "validation/exact_match"
    return [line[key] for line in run.metrics if line.get("phase") == phase and key in line]


SHORT = [f"trainer.phases.{i}.trainer.total_train_steps=3" for i in (0, 1)]


def assert_whole(run):
    """It has the steps of :data:`SHORT`, and the validations around them."""
    assert run.status["state"] == "done"
    assert [line["step"] for line in run.metrics] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(held_out(run, 1)) == len(held_out(run, 2)) == 2


@pytest.mark.integration
def test_three_steps_of_each_phase(tmp_path):
    kills.finish("train", "quickstart", *SHORT, cwd=tmp_path)
    (run,) = tmp_path.glob("runs/quickstart/*")
    assert_whole(load_run(run))


@pytest.mark.slow
def test_three_steps_of_each_phase_give_equal_numbers_in_processes_with_other_hash_seeds(
    tmp_path, monkeypatch
):
    lines = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        folder = tmp_path / seed
        folder.mkdir()
        run, _ = trained(folder, *SHORT)
        assert_whole(run)
        kept = [{k: v for k, v in m.items() if not k.startswith("time/")} for m in run.metrics]
        lines.append(json.dumps(kept, sort_keys=True))
    assert lines[0] == lines[1]


@pytest.mark.slow
@pytest.mark.timeout(CURVES)
def test_it_learns(tmp_path):
    last = []
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        run, seconds = trained(folder, f"seed={seed}")
        during = held_out(run, 2)
        assert during[0] <= 0.6, "the warm start left too little to learn"
        assert len(during) > 3
        assert seconds <= 240
        last.append(during[-1])
    assert_reached(last, median=0.9, each=0.8)
