"""Asynchronous runs that are killed, hang or find the disk full: attempts are counted over them."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import forking
import pytest
import yaml

import plugrl
from plugrl.testing import tiny

pytestmark = pytest.mark.integration
PLUGIN = Path(__file__).with_name("overlap_plugin.py")
DRIVER = Path(__file__).with_name("waiting_driver.py")
STEPS = 30
KILLS = 3
#: The steps that a process does before it waits for its end: the kills come before the run's.
STEPS_EACH = 9
MODES = ["batch-async", "finish", "restart", "continue"]
THRESHOLD = 2


def mode_sections(mode):
    if mode == "batch-async":
        return {"weight": {"sync_mode": mode, "staleness_threshold": THRESHOLD}}
    return {
        "weight": {
            "sync_mode": "fully-async",
            "staleness_threshold": THRESHOLD,
            "in_flight": mode,
        },
        "trajectory_pool": {"check_batch_ready_function": "batch_size", "batch_size": 8},
    }


@pytest.fixture
def started(tmp_path):
    """Starts a run of a mode, or resumes it, as a process."""
    trained = tmp_path / "trained.jsonl"

    def start(
        mode, *, folder=None, breaks="", steps=STEPS, processes=0, until_killed=False, **settings
    ):
        env = {**os.environ, "PLUGRL_TEST_TRAINED": str(trained), "PLUGRL_TEST_BREAK": breaks}
        if folder is not None:
            words = ["resume", str(folder)]
        else:
            tree = tiny.config("self_hosted_grpo", tmp_path, mode_sections(mode))
            tree["trainer"]["total_train_steps"] = steps
            tree["validate"] = {"enabled": False}
            tree["settings"] |= {"checkpoint_every": 2, "keep_checkpoints": 3, **settings}
            tree["rollout_worker"] |= {"type": "uneven", "processes": processes}
            recipe = tmp_path / "recipe.yaml"
            recipe.write_text(yaml.safe_dump(tree))
            words = ["train", str(recipe)]
        program = [DRIVER, STEPS_EACH] if until_killed else ["-m", "plugrl"]
        return forking.Process(
            [*program, "-p", PLUGIN, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env,
        )

    start.trained = trained
    start.folder = lambda: next((tmp_path / "runs").glob("*/[0-9]*"))
    return start


def records(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def counted(started):
    """How often each attempt was trained, in the steps that the run was made of in the end."""
    steps = {}
    for record in records(started.trained):
        # A step after the checkpoint that a resume began with never happened.
        steps = {n: r for n, r in steps.items() if n < record["step"]}
        steps[record["step"]] = record
    assert sorted(steps) == list(range(1, len(steps) + 1))
    assert max(record["gap"] for record in steps.values()) <= THRESHOLD
    return Counter(tuple(key) for record in steps.values() for key in record["keys"])


def check(started, steps=STEPS):
    counts = counted(started)
    assert set(counts.values()) == {1}, "an attempt was trained twice"
    assert sum(counts.values()) == 8 * steps
    state = plugrl.load_run(started.folder()).checkpoint()["trainer"]
    waiting = {(a[2], a[1]) for a in state["collector"]["attempts"]}
    assert not waiting & set(counts)
    given = state["loader"]["epoch"] * 4 + state["loader"]["position"]
    assert len(waiting) + len(counts) == given * 4, "an attempt was lost"


@pytest.mark.parametrize(("mode", "processes"), [*((m, 0) for m in MODES), ("continue", 2)])
def test_no_kill_loses_or_doubles_an_attempt(started, mode, processes):
    moments, folder = random.Random(0), None
    for _ in range(KILLS):
        process = started(mode, folder=folder, processes=processes, until_killed=True)
        before = len(records(started.trained))
        forking.kill_when(
            process,
            lambda before=before: len(records(started.trained)) > before,
            delay=moments.uniform(0, 0.3),
        )
        folder = started.folder()
    process = started(mode, folder=folder, processes=processes)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    check(started)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("breaks", "phase"), [("complete", "rollout"), ("sync", "sync")])
def test_what_hangs_ends_with_the_phase_and_goes_on_later(started, mode, breaks, phase):
    process = started(mode, breaks=breaks, steps=8, deadlines={phase: 3.0})
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"error: phase {phase!r} after step" in errors
    assert "passed its deadline of 3 s" in errors
    assert errors.splitlines()[-1] == f"plugrl resume {started.folder()}"
    process = started(mode, folder=started.folder())
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    check(started, 8)


@pytest.mark.parametrize("mode", MODES)
def test_a_full_disk_at_a_checkpoint_costs_no_attempt(started, mode):
    process = started(mode, breaks="disk", steps=8)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "disk" in errors or "File too large" in errors
    process = started(mode, folder=started.folder())
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    check(started, 8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_in_time_with_its_code(started, mode, number, code):
    process = started(mode, steps=2000)
    while len(records(started.trained)) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert time.monotonic() - began < 30
    assert errors.splitlines()[-1] == f"plugrl resume {started.folder()}"
