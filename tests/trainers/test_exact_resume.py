"""Killed at random moments and resumed, a run equals the uninterrupted one bit for bit."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import forking
import pytest
import yaml

from plugrl.core.experiment import load_run
from plugrl.testing import tiny
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable
from plugrl.trainers.sequence import SequenceTrainer

pytestmark = pytest.mark.integration
MOMENTS = 20


def plugrl(*arguments):
    return ["-m", "plugrl", *arguments]


@pytest.fixture
def recipe(tmp_path):
    """Two phases of 40 steps, a checkpoint every 7."""
    tree = tiny.config("sequence", tmp_path, SequenceTrainer.conformance)
    for phase in tree["trainer"]["phases"]:
        phase["trainer"]["total_train_steps"] = 40
    tree["settings"] |= {"checkpoint_every": 7, "keep_checkpoints": 3}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def finished(folder: Path):
    return json.loads((folder / "status.json").read_text())["state"] == "done"


def test_killed_and_resumed_it_equals_the_uninterrupted_run(recipe, tmp_path):
    straight = tmp_path / "straight"
    forking.run(plugrl("train", str(recipe), f"settings.runs_folder={straight}"), check=True)
    (expected,) = straight.glob("*/[0-9]*")

    moments = random.Random(0)
    kills, killed_in = 0, set()
    round_ = 0
    while kills < MOMENTS:
        round_ += 1
        runs = tmp_path / f"killed{round_}"
        command = plugrl("train", str(recipe), f"settings.runs_folder={runs}")
        folder = None
        while folder is None or not finished(folder):
            process = forking.Process(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            # Wait until the training has begun, so that kills do not all fall into the imports.
            before = step_of(folder)
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                folder = folder or next(runs.glob("*/[0-9]*/metrics.jsonl"), Path("x/y")).parent
                folder = folder if folder.name != "x" else None
                if folder is not None and step_of(folder) > before:
                    break
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.4))
            if process.poll() is None and kills < MOMENTS:
                process.send_signal(signal.SIGKILL)
                kills += 1
                killed_in.add(step_of(folder))
            process.wait(timeout=120)
            assert folder is not None
            command = plugrl("resume", str(folder))
        assert comparable(load_run(folder)) == comparable(load_run(expected))
        assert_equal_states(
            load_run(folder).checkpoint()["trainer"], load_run(expected).checkpoint()["trainer"]
        )
    assert len(killed_in) > 3, "the kills fell on too few steps to say anything"


def test_dying_at_a_named_moment_changes_nothing(recipe, tmp_path):
    tree = yaml.safe_load(recipe.read_text())
    for phase in tree["trainer"]["phases"]:
        phase["trainer"]["total_train_steps"] = 6
    tree["settings"]["checkpoint_every"] = 2
    recipe.write_text(yaml.safe_dump(tree))
    straight = tmp_path / "straight"
    forking.run(plugrl("train", str(recipe), f"settings.runs_folder={straight}"), check=True)
    (expected,) = straight.glob("*/[0-9]*")
    want = load_run(expected)

    driver = Path(__file__).with_name("moments_driver.py")
    done = forking.run([driver, recipe, tmp_path], check=True)
    moments = json.loads(done.stdout)
    assert len(moments) >= 20
    for name, ended in moments.items():
        log = Path(ended["log"]).read_text(encoding="utf-8")
        full = "disk full" in name
        assert ended["code"] == (1 if full else -signal.SIGKILL), f"{name}: {log}"
        assert ended["resumed"] == 0, f"{name}: {log}"
        if "plugin" in name:
            assert "resuming with other plugins" in log
        got = load_run(ended["run"])
        assert comparable(got) == comparable(want), name
        assert_equal_states(got.checkpoint()["trainer"], want.checkpoint()["trainer"])


def step_of(folder):
    """The number of metrics lines so far."""
    if folder is None or not (folder / "metrics.jsonl").exists():
        return -1
    return (folder / "metrics.jsonl").read_bytes().count(b"\n")


def test_a_terminated_run_saves_exits_with_143_and_goes_on(recipe, tmp_path):
    runs = tmp_path / "runs-terminated"
    process = forking.Process(
        plugrl("train", str(recipe), f"settings.runs_folder={runs}"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    while not any(step_of(p.parent) > 3 for p in runs.glob("*/[0-9]*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    (folder,) = runs.glob("*/[0-9]*")
    assert errors.splitlines()[-1] == f"plugrl resume {folder}"
    forking.run(plugrl("resume", str(folder)), check=True)
    assert finished(folder)
