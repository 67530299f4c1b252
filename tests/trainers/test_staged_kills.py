"""Staged trainings that are killed at every moment pay for nothing twice, and end alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import forking
import pytest
import text_agents
import yaml

from plugrl.core.experiment import load_run
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable

pytestmark = pytest.mark.integration
PLUGIN = Path(__file__).with_name("staged_plugin.py")
SECTIONS = {
    "ei_pure_text": {
        "trainer": {"reward_threshold": -1.0},
        "models": {"policy": {"fine_tune": {"from_scratch": False, "save_interval": 0}}},
    },
    "malt_pure_text": {
        "trainer": {"num_responses_per_timestep": 3},
        "models": {"policy": {"fine_tune": {"save_interval": 0}}},
    },
}
#: Lines of the journal, both sides of each request to the fine-tune service, and every stage: done
#: but not saved, and some of them saved.
MOMENTS = [
    *("before rollout:1", "rollout:1", "rollout:3", "rollout:6", "rollout:14"),
    *("round:1", "before kept:1", "kept:1", "kept:2", "kept:4"),
    *("before intent:1", "intent:1", "before job:1", "job:1", "intent:2", "before job:2", "job:2"),
    *("before status:1", "status:1", "status:2", "status:7", "before used:1", "used:1", "used:2"),
    *(f"before saved:{number}" for number in range(1, 11)),
    *("saved:1", "saved:5", "saved:10"),
]
#: Those at which a tree is another thing than an episode.
OF_TREES = [moment for moment in MOMENTS if "rollout" in moment or "job" in moment]


@pytest.fixture(scope="module", params=SECTIONS)
def trainer(request):
    return request.param


def recipe(trainer, folder):
    folder.mkdir()
    tree = text_agents.config(trainer, folder, **SECTIONS[trainer])
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def environment(folder, moment=""):
    return {
        **os.environ,
        "PLUGRL_TEST_KILL": moment,
        "PLUGRL_TEST_LOG": str(folder / "log.jsonl"),
    }


def words(*rest):
    return ["-m", "plugrl", "-p", str(PLUGIN), *map(str, rest)]


def reached(folder):
    """What was noted, as (moment, note)."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [(moment, str(note)) for moment, note in map(json.loads, lines)]


@pytest.fixture(scope="module")
def straight(trainer, tmp_path_factory):
    """A run that nothing interrupted, and how often each moment came."""
    folder = tmp_path_factory.mktemp("straight") / "of"
    path = recipe(trainer, folder)
    forking.run(words("train", path), env=environment(folder), check=True)
    (run,) = (folder / "runs").glob("*/[0-9]*")
    return load_run(run), Counter(moment for moment, _ in reached(folder))


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_pays_for_nothing_twice_and_ends_alike(
    trainer, straight, moment, tmp_path
):
    _, counts = straight
    if trainer == "malt_pure_text" and moment not in OF_TREES:
        pytest.skip("the same as of expert iteration")
    name, _, number = moment.partition(":")
    if counts[name] < int(number):
        pytest.skip(f"{trainer} has no {moment}")
    folder = tmp_path / "of"
    path = recipe(trainer, folder)
    killed = subprocess.run(
        [sys.executable, *words("train", path)],
        env=environment(folder, moment),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    resumed_it_ends_alike(folder, straight)


@pytest.mark.parametrize("moment", ["rollout:3", "before kept:1", "intent:1", "before job:1"])
def test_a_full_disk_ends_it_in_a_line_and_nothing_is_paid_for_twice(
    trainer, straight, moment, tmp_path
):
    if trainer == "malt_pure_text" and moment not in OF_TREES:
        pytest.skip("another trainer does the same there")
    folder = tmp_path / "of"
    path = recipe(trainer, folder)
    full = {**environment(folder, moment), "PLUGRL_TEST_FULL": "1"}
    process = forking.Process(
        words("train", path), env=full, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, errors = process.communicate(timeout=120)
    (run,) = (folder / "runs").glob("*/[0-9]*")
    assert process.returncode == 1
    (error,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "no space left" in error
    assert error.endswith("free some space and resume")
    assert errors.splitlines()[-1] == f"plugrl resume {run}"
    resumed_it_ends_alike(folder, straight)


def resumed_it_ends_alike(folder, straight):
    """Resume the only run, which then is like the one that nothing interrupted."""
    whole, counts = straight
    (run,) = (folder / "runs").glob("*/[0-9]*")
    forking.run(words("resume", run), env=environment(folder), check=True)
    noted = Counter(entry for entry in reached(folder) if entry[0] in ("rollout", "job"))
    assert set(noted.values()) == {1}, "something was done twice"
    once = Counter(kind for kind, _ in noted)
    assert once["rollout"] == counts["rollout"]
    assert once["job"] == counts["job"]
    jobs = [entry.name for entry in (run / "fine_tuning" / "policy").iterdir()]
    assert len(jobs) == counts["job"]

    got = load_run(run)
    assert got.status["state"] == "done"
    assert comparable(got) == comparable(whole)
    states = [named(each.checkpoint()["trainer"], each.folder.name) for each in (got, whole)]
    assert_equal_states(*states)


def named(state, run):
    """A state without the name of its run, which those of jobs have."""
    return json.loads(json.dumps(state).replace(run, "RUN"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_does_not_wait_for_jobs_which_are_taken_up_again(tmp_path, number, code):
    folder = tmp_path / "of"
    path = recipe("ei_pure_text", folder)
    endless = "models.policy.fine_tune.epochs=50000"
    process = forking.Process(
        words("train", path, endless), stderr=subprocess.PIPE, env=environment(folder)
    )
    deadline = time.monotonic() + 60
    while not (folder / "log.jsonl").exists() or "status" not in dict(reached(folder)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert time.monotonic() - began < 20
    (run,) = (folder / "runs").glob("*/[0-9]*")
    saved = load_run(run).checkpoint()["trainer"]
    assert saved["stage"] == "await_fine_tune_jobs"
    assert saved["groups"]["policy"]["job_name"].endswith("iteration-1-policy")
    assert errors.splitlines()[-1] == f"plugrl resume {run}"
