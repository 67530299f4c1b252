"""Runs of ``harness`` and ``hf_ast``: as from code, killed and resumed, told to plugins."""

import functools
import os
import signal
import subprocess

import kills
import pytest
import torch
import yaml
from testers import DEADLY, PolicyGradient, make_environment, weights
from waiting import DEADLINE

import plugrl
from plugrl import TrainingConfiguration
from plugrl.core.experiment import load_run
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.scenarios.red_team.scenario import RedTeamScenario
from plugrl.scenarios.scorers.regex import RegexScorer
from plugrl.testing import tiny
from plugrl.testing.comparison import assert_equal_states, comparable_metrics
from plugrl.trainers.harness import HarnessTrainer

NAMES = ["harness", "hf_ast"]


def small(name, folder, **sections):
    """A configuration of four steps with an algorithm that needs nothing."""
    base = tiny.config(name, folder, HarnessTrainer.conformance)
    base["trainer"] |= {
        "algorithm": DEADLY,
        "training_steps": 4,
        "batch_size": 5,
        "gradient_accumulation_steps": 2,
        "lr": 0.01,
    }
    if name == "hf_ast":
        base["trainer"] |= {"eval_every": 2, "schedule": "cosine", "warmup_steps": 1}
    base["models"]["tester"]["train"]["value_head"] = False
    return tiny.merged(base, sections)


def test_a_run_and_code_give_equal_weights(tmp_path):
    config = small("harness", tmp_path)
    run = plugrl.train(config)
    system = LanguageModelSystem.load(config["models"], config["red_team"], seed=0)
    scenario = RedTeamScenario({k: v for k, v in config["scenario"].items() if k != "type"})
    scorer = {k: v for k, v in config["red_team"]["scorer"].items() if k != "type"}
    section = {k: v for k, v in config["red_team"].items() if k != "scorer"}
    section = {"tree_width": 2, **section}
    environment = make_environment(
        system, RegexScorer(scorer), scenario.build(0).dataset("train"), **section
    )
    own = {k: v for k, v in config["trainer"].items() if k not in ("type", "algorithm")}
    HarnessTrainer(TrainingConfiguration(**own), environment, PolicyGradient()).train()
    saved = run.checkpoint()["trainer"]["system"]["tester"]["state"]["weights"]
    made = weights(system)
    assert saved.keys() == made.keys()
    assert all(torch.equal(saved[name], made[name]) for name in made)


ADAPTER = {"r": 2, "dropout": 0.2}
KILLED = [(name, kind) for name in NAMES for kind in ("whole", "adapter")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Gives the recipe of a run that nothing interrupts, and that run."""

    @functools.cache
    def of(name, trained):
        folder = tmp_path_factory.mktemp("straight")
        sections = {"models": {"tester": {"adapter": ADAPTER}}} if trained == "adapter" else {}
        config = small(name, folder, **sections)
        file = folder / "recipe.yaml"
        file.write_text(yaml.safe_dump(config), "utf-8")
        return file, plugrl.train(config)

    return of


@pytest.mark.parametrize(
    ("name", "trained", "kill_at"),
    kills.sampled_of_each([[(*each, at) for at in (2, 6, 11)] for each in KILLED]),
)
def test_killed_and_resumed_a_run_equals_the_uninterrupted_one(
    straight, tmp_path, name, trained, kill_at
):
    if trained == "adapter":
        pytest.importorskip("peft")
    file, whole = straight(name, trained)
    runs = tmp_path / "killed"
    killed = kills.start(
        *("train", file, f"settings.runs_folder={runs}"),
        env={**os.environ, "KILL_AT": str(kill_at)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    _, errors = killed.communicate(timeout=DEADLINE)
    assert killed.returncode == -signal.SIGKILL, errors
    (folder,) = runs.glob("*/[0-9]*")
    kills.finish("resume", folder)
    again = load_run(folder)
    assert comparable_metrics(again) == comparable_metrics(whole)
    assert_equal_states(again.checkpoint()["trainer"], whole.checkpoint()["trainer"])
    if name == "hf_ast":
        for kept in ("best", "last"):
            one, other = (
                (run / "hf" / kept / "model.safetensors").read_bytes()
                for run in (folder, whole.folder)
            )
            assert one == other
