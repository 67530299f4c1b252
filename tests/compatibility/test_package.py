"""A package that was written against 0.1 is installed, checked and trained, unchanged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import distributions
import forking
import pytest
import yaml

from plugrl.testing import tiny
from plugrl.trainers.kit import RED_TEAM, TALKING

PACKAGE = Path(__file__).parent / "package"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    distributions.install(PACKAGE, target)
    return target


@pytest.fixture
def plugrl(site, tmp_path):
    """Runs a command where the package is installed, and gives what it printed."""

    def run(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        done = forking.run(("-m", "plugrl", *words), cwd=tmp_path, env=environment)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


def write(folder: Path, trainer: str, *sections: dict) -> Path:
    tree = tiny.config(trainer, folder)
    for section in sections:
        tree = tiny.merged(tree, section)
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(tree), "utf-8")
    return file


def last_metrics(folder: Path) -> dict:
    (file,) = folder.glob("runs/*/*/metrics.jsonl")
    return json.loads(file.read_text("utf-8").splitlines()[-1])


def test_every_component_is_listed(plugrl):
    rows = json.loads(plugrl("plugins", "list", "--third-party", "--json"))
    names = [row["name"] for row in rows if row["distribution"] == "plugrl-written-for-0-1"]
    assert len(names) == 16
    assert plugrl("answer-0-1") == "42\n"


def test_a_language_model_learns_with_its_components_and_hooks_are_called(plugrl, tmp_path):
    lines = plugrl("train", "doubles_0_1", "settings.progress=none").splitlines()
    assert [line for line in lines if line.startswith("tracked")][-1] == "tracked 2 True"
    hooks = [line.removeprefix("hook ") for line in lines if line.startswith("hook ")]
    assert hooks[:2] == ["configure", "run_start step=0"]
    step = [
        "rollouts_collected step=2 trajectories=8", "weights_synced step=2",
        "evaluation_end step=2 metrics=True", "step_end step=2 metrics=True",
    ]  # fmt: skip
    assert [line for line in hooks if line in step] == step
    assert "checkpoint_saved step=2 there=True" in hooks
    assert hooks[-1] == "run_end outcome=done"
    assert 0 <= last_metrics(tmp_path)["rollout/digits"] <= 1


@pytest.mark.integration
def test_small_networks_learn_with_its_loss_and_body(plugrl, tmp_path):
    sections = {
        "models": None, "data": None, "rollout_worker": None,
        "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
        "rl": {"num_iterations": 2, "frames_per_batch": 64},
        "regression": {"temperature": 0.5},
        "agents": {"agent": {"body": {"type": "wide_0_1", "width": 12}}},
        "validate": {"data": None, "every": 1, "episodes": 2},
        "trainer": {"total_train_steps": None},
    }  # fmt: skip
    plugrl("train", str(write(tmp_path, "regression_0_1", sections)))
    assert last_metrics(tmp_path)["train/weight"] > 0


@pytest.mark.integration
def test_agents_that_talk_are_fine_tuned_by_its_jobs(plugrl, tmp_path):
    plugrl("train", str(write(tmp_path, "best_0_1", TALKING)))
    (jobs,) = tmp_path.glob("runs/*/*/jobs.jsonl")
    assert jobs.read_text("utf-8").count("\n") == 2


@pytest.mark.integration
def test_testers_learn_with_its_environment_scorer_and_algorithm(plugrl, tmp_path):
    own = {
        "red_team": {"type": "late_0_1", "scorer": None},
        "trainer": {"type": "harness", "algorithm": "plain_0_1"},
    }
    sections = tiny.merged(RED_TEAM, own)
    sections["red_team"]["scorer"] = "vowels_0_1"
    plugrl("train", str(write(tmp_path, "harness", sections)))
    assert "train/reward" in last_metrics(tmp_path)
