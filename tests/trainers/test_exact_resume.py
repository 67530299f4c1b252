"""Killed at random moments and resumed, a run equals the uninterrupted one bit for bit."""

import os
import shlex
import subprocess

import kills
import moments_driver
import pytest
import yaml
from waiting import DEADLINE

from plugrl.core.experiment import load_run
from plugrl.testing import tiny
from plugrl.testing.comparison import assert_equal_states, comparable_metrics
from plugrl.trainers.sequence import SequenceTrainer


def recipe(folder, steps, **settings):
    """Two phases of ``steps`` steps."""
    tree = tiny.config("sequence", folder, SequenceTrainer.conformance)
    for phase in tree["trainer"]["phases"]:
        phase["trainer"]["total_train_steps"] = steps
    tree["settings"] |= settings
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree), "utf-8")
    return path


def words(path, runs):
    return ["train", path, f"settings.runs_folder={runs}"]


def check(run, expected):
    got, want = load_run(run), load_run(expected)
    assert got.status["state"] == "done"
    assert comparable_metrics(got) == comparable_metrics(want)
    assert_equal_states(got.checkpoint()["trainer"], want.checkpoint()["trainer"])


def straight(path, folder):
    """The folder of a run that nothing interrupted."""
    kills.finish(*words(path, folder / "straight"))
    return next((folder / "straight").glob("*/[0-9]*"))


@pytest.mark.parametrize(("rounds", "each"), kills.tiers([(1, 3)], [(4, 5)]))
def test_killed_and_resumed_it_equals_the_uninterrupted_run(tmp_path, rounds, each):
    steps = each * kills.MOST_LINES // 2
    path = recipe(tmp_path, steps, checkpoint_every=2, keep_checkpoints=3)
    expected = straight(path, tmp_path)
    for number in range(rounds):
        runs = tmp_path / f"killed{number}"
        command = words(path, runs)
        for line, seconds in kills.moments(number, each, 0.1):
            kills.kill(line, seconds, *command)
            (folder,) = runs.glob("*/[0-9]*")
            command = ["resume", folder]
        kills.finish(*command)
        check(folder, expected)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A recipe of twelve steps, and its run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("short")
    path = recipe(folder, 6, checkpoint_every=2)
    return path, straight(path, folder)


@pytest.mark.parametrize("moment", kills.sampled_of_each(moments_driver.KINDS.values()))
def test_dying_at_a_named_moment_changes_nothing(short, tmp_path, moment):
    path, expected = short
    (run,) = kills.at_moments(path, tmp_path, moment).values()
    check(run, expected)


#: So that the signal comes before the end of the run.
TERMINATES = """
import os, signal
from plugrl.core.run.records.records import RunRecords

plain, written = RunRecords.metrics, []

def metrics(self, step, numbers):
    plain(self, step, numbers)
    written.append(step)
    if len(written) == int(os.environ.get("TERMINATED_AT", 0)):
        os.kill(os.getpid(), signal.SIGTERM)

RunRecords.metrics = metrics
"""


@pytest.mark.integration
def test_a_terminated_run_saves_exits_with_143_and_goes_on(short, tmp_path):
    path, expected = short
    plugin, runs = tmp_path / "terminates.py", tmp_path / "runs"
    plugin.write_text(TERMINATES, "utf-8")
    process = kills.start(
        *("-p", plugin, *words(path, runs)),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERMINATED_AT": "4"},
    )
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143, errors
    (folder,) = runs.glob("*/[0-9]*")
    assert errors.splitlines()[-1] == f"plugrl resume {shlex.quote(str(folder))}"
    # The step in which it came, though checkpoints are saved at each second one.
    assert load_run(folder).checkpoint()["run"]["step"] == 3
    kills.finish("-p", plugin, "resume", folder)
    check(folder, expected)
