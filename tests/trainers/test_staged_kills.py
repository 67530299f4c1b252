"""Staged trainings that are killed at every moment pay for nothing twice, and end alike."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
from collections import Counter
from pathlib import Path

import kills
import pytest
import text_agents
import yaml
from waiting import DEADLINE, wait_until

from plugrl.core.experiment import load_run
from plugrl.testing.comparison import assert_equal_states, comparable_metrics

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
ROLLOUTS = ["before rollout:1", "rollout:1", "rollout:3", "rollout:6", "rollout:14"]
JOBS = ["before job:1", "job:1", "before job:2", "job:2"]
MOMENTS = [
    ROLLOUTS,
    ["round:1", "before kept:1", "kept:1", "kept:2", "kept:4"],
    ["before intent:1", "intent:1", "intent:2"],
    JOBS,
    ["before status:1", "status:1", "status:2", "status:6"],
    ["before used:1", "used:1", "used:2"],
    [f"before saved:{number}" for number in range(1, 11)],
    ["saved:1", "saved:5", "saved:10"],
]
#: With trees only those at which a tree is another thing than an episode.
KINDS = [
    *([("ei_pure_text", moment) for moment in kind] for kind in MOMENTS),
    *([("malt_pure_text", moment) for moment in kind] for kind in (ROLLOUTS, JOBS)),
]


def recipe(trainer, folder):
    folder.mkdir()
    tree = text_agents.config(trainer, folder, **SECTIONS[trainer])
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree), "utf-8")
    return path


def environment(folder):
    return {**os.environ, "PLUGRL_TEST_LOG": str(folder / "log.jsonl")}


def reached(folder):
    """What was noted, as (moment, note)."""
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    return [(moment, str(note)) for moment, note in map(json.loads, lines)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Gives a run of a trainer that nothing interrupted, and how often each moment came."""

    @functools.cache
    def of(trainer):
        folder = tmp_path_factory.mktemp("straight") / "of"
        path = recipe(trainer, folder)
        kills.finish("-p", PLUGIN, "train", path, env=environment(folder))
        (run,) = (folder / "runs").glob("*/[0-9]*")
        return load_run(run), Counter(moment for moment, _ in reached(folder))

    return of


def ended(folder, trainer, **variables):
    """The exit code and the error output of a run that the environment ends early."""
    process = kills.start(
        *("-p", PLUGIN, "train", recipe(trainer, folder)),
        env={**environment(folder), **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    _, errors = process.communicate(timeout=DEADLINE)
    return process.returncode, errors


@pytest.mark.parametrize(("trainer", "moment"), kills.sampled_of_each(KINDS))
def test_killed_at_any_moment_it_pays_for_nothing_twice_and_ends_alike(
    trainer, straight, moment, tmp_path
):
    folder = tmp_path / "of"
    code, errors = ended(folder, trainer, PLUGRL_TEST_KILL=moment)
    assert code == -signal.SIGKILL, errors
    resumed_it_ends_alike(folder, *straight(trainer))


@pytest.mark.parametrize(
    ("trainer", "moment"),
    kills.sampled_of_each(
        [
            [("ei_pure_text", "rollout:3"), ("malt_pure_text", "rollout:3")],
            [("ei_pure_text", "before kept:1"), ("ei_pure_text", "intent:1")],
            [("ei_pure_text", "before job:1"), ("malt_pure_text", "before job:1")],
        ]
    ),
)
def test_a_full_disk_ends_it_in_a_line_and_nothing_is_paid_for_twice(
    trainer, straight, moment, tmp_path
):
    folder = tmp_path / "of"
    code, errors = ended(folder, trainer, PLUGRL_TEST_KILL=moment, PLUGRL_TEST_FULL="1")
    (run,) = (folder / "runs").glob("*/[0-9]*")
    assert code == 1
    (error,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "no space left" in error
    assert error.endswith("free some space and resume")
    assert errors.splitlines()[-1] == f"plugrl resume {shlex.quote(str(run))}"
    resumed_it_ends_alike(folder, *straight(trainer))


def resumed_it_ends_alike(folder, whole, counts):
    """Resume the only run, which then is like the one that nothing interrupted."""
    (run,) = (folder / "runs").glob("*/[0-9]*")
    kills.finish("-p", PLUGIN, "resume", run, env=environment(folder))
    noted = Counter(entry for entry in reached(folder) if entry[0] in ("rollout", "job"))
    assert set(noted.values()) == {1}, "something was done twice"
    once = Counter(kind for kind, _ in noted)
    assert once["rollout"] == counts["rollout"]
    assert once["job"] == counts["job"]
    jobs = [entry.name for entry in (run / "fine_tuning" / "policy").iterdir()]
    assert len(jobs) == counts["job"]

    got = load_run(run)
    assert got.status["state"] == "done"
    assert comparable_metrics(got) == comparable_metrics(whole)
    states = [named(each.checkpoint()["trainer"], each.folder.name) for each in (got, whole)]
    assert_equal_states(*states)


def named(state, run):
    """A state without the name of its run, which those of jobs have."""
    return json.loads(json.dumps(state).replace(run, "RUN"))


@pytest.mark.integration
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_does_not_wait_for_jobs_which_are_taken_up_again(tmp_path, number, code):
    folder = tmp_path / "of"
    path = recipe("ei_pure_text", folder)
    # Of these the run would not see the end.
    endless = "models.policy.fine_tune.epochs=50000"
    process = kills.start(
        *("-p", PLUGIN, "train", path, endless),
        stderr=subprocess.PIPE,
        env=environment(folder),
    )
    log = folder / "log.jsonl"
    wait_until(lambda: log.exists() and "status" in dict(reached(folder)), process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == code, errors
    (run,) = (folder / "runs").glob("*/[0-9]*")
    saved = load_run(run).checkpoint()["trainer"]
    assert saved["stage"] == "await_fine_tune_jobs"
    assert saved["groups"]["policy"]["job_name"].endswith("iteration-1-policy")
    assert errors.splitlines()[-1] == f"plugrl resume {shlex.quote(str(run))}"
