"""Asynchronous runs that are killed, hang or find the disk full: attempts are counted over them."""

import json
import os
import shlex
import signal
import subprocess
from collections import Counter
from pathlib import Path

import kills
import pytest
import yaml
from waiting import DEADLINE, wait_until

import plugrl
from plugrl.testing import tiny

PLUGIN = Path(__file__).with_name("overlap_plugin.py")
STEPS = 30
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


class Runs:
    """Starts the one run of a test, and resumes it, as processes."""

    def __init__(self, folder):
        self.trained = folder / "trained.jsonl"
        self._folder = folder

    @property
    def folder(self):
        return next((self._folder / "runs").glob("*/[0-9]*"))

    def recipe(self, mode, steps=STEPS, processes=0, **settings):
        """The words that train."""
        tree = tiny.config("self_hosted_grpo", self._folder, mode_sections(mode))
        tree["trainer"]["total_train_steps"] = steps
        tree["validate"] = {"enabled": False}
        tree["settings"] |= {"checkpoint_every": 2, "keep_checkpoints": 3, **settings}
        tree["rollout_worker"] |= {"type": "uneven", "processes": processes}
        recipe = self._folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(tree), "utf-8")
        return ["-p", PLUGIN, "train", recipe]

    def environment(self, breaks=""):
        return {
            **os.environ,
            "PLUGRL_TEST_TRAINED": str(self.trained),
            "PLUGRL_TEST_BREAK": breaks,
        }

    def start(self, words, breaks=""):
        return kills.start(
            *words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.environment(breaks),
        )

    def resume_to_the_end(self):
        kills.finish(*self.resumption(), env=self.environment())

    def resumption(self):
        return ["-p", PLUGIN, "resume", self.folder]


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


def records(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def counted(runs):
    """How often each attempt was trained, in the steps that the run was made of in the end."""
    steps = {}
    for record in records(runs.trained):
        # A step after the checkpoint that a resume began with never happened.
        steps = {n: r for n, r in steps.items() if n < record["step"]}
        steps[record["step"]] = record
    assert sorted(steps) == list(range(1, len(steps) + 1))
    assert max(record["gap"] for record in steps.values()) <= THRESHOLD
    return Counter(tuple(key) for record in steps.values() for key in record["keys"])


def check(runs, steps=STEPS):
    counts = counted(runs)
    assert set(counts.values()) == {1}, "an attempt was trained twice"
    assert sum(counts.values()) == 8 * steps
    state = plugrl.load_run(runs.folder).checkpoint()["trainer"]
    waiting = {(a[2], a[1]) for a in state["collector"]["attempts"]}
    assert not waiting & set(counts)
    given = state["loader"]["epoch"] * 4 + state["loader"]["position"]
    assert len(waiting) + len(counts) == given * 4, "an attempt was lost"


@pytest.mark.parametrize(
    ("mode", "processes"),
    kills.tiers(
        [("batch-async", 0), ("continue", 2)],
        [*((mode, 0) for mode in MODES), ("continue", 2)],
    ),
)
def test_no_kill_loses_or_doubles_an_attempt(runs, mode, processes):
    words = runs.recipe(mode, processes=processes)
    for line, seconds in kills.moments(mode, STEPS // kills.MOST_LINES, 0.3):
        kills.kill(line, seconds, *words, env=runs.environment())
        words = runs.resumption()
    runs.resume_to_the_end()
    check(runs)


@pytest.mark.parametrize(
    ("breaks", "phase", "mode"),
    kills.tiers(
        [("complete", "rollout", "continue")],
        [(*where, mode) for where in (("complete", "rollout"), ("sync", "sync")) for mode in MODES],
    ),
)
def test_what_hangs_ends_with_the_phase_and_goes_on_later(runs, mode, breaks, phase):
    # What ends the phase is its deadline; what does not hang has to meet it on a busy machine.
    seconds = 8.0
    process = runs.start(runs.recipe(mode, steps=8, deadlines={phase: seconds}), breaks)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert f"error: phase {phase!r} after step" in errors
    assert f"passed its deadline of {seconds:.0f} s" in errors
    assert errors.splitlines()[-1] == f"plugrl resume {shlex.quote(str(runs.folder))}"
    runs.resume_to_the_end()
    check(runs, 8)


@pytest.mark.parametrize("mode", kills.sampled(MODES, 1))
def test_a_full_disk_at_a_checkpoint_costs_no_attempt(runs, mode):
    process = runs.start(runs.recipe(mode, steps=8), "disk")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "disk" in errors or "File too large" in errors
    runs.resume_to_the_end()
    check(runs, 8)


SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


@pytest.mark.parametrize(
    ("number", "code", "mode"),
    kills.sampled([(*each, mode) for mode in MODES for each in SIGNALS], 1),
)
def test_a_signal_ends_the_run_in_time_with_its_code(runs, mode, number, code):
    # Minutes of steps, and too few for a compiler to be worth half of one.
    process = runs.start(runs.recipe(mode, steps=10**4))
    wait_until(lambda: len(records(runs.trained)) >= 5, process)
    process.send_signal(number)
    before = len(records(runs.trained))
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == code, errors
    # At the end of the step, not of the run.
    assert len(records(runs.trained)) - before <= 2
    assert errors.splitlines()[-1] == f"plugrl resume {shlex.quote(str(runs.folder))}"
