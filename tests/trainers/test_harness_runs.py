"""Runs of ``harness`` and ``hf_ast``: as from code, killed and resumed, told to plugins."""

import os
import signal

import forking
import pytest
import torch
import yaml
from testers import DEADLY, PolicyGradient, make_environment, weights

import plugrl
from plugrl.core.experiment import load_run
from plugrl.core.text.red_team.configuration import TrainingConfiguration
from plugrl.core.text.red_team.language_models import LanguageModelSystem
from plugrl.scenarios.red_team.scenario import RedTeamScenario
from plugrl.scenarios.scorers.regex import RegexScorer
from plugrl.testing import tiny
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable
from plugrl.trainers.harness import HarnessTrainer

NAMES = ["harness", "hf_ast"]


@pytest.fixture
def tree(tmp_path):
    """A configuration of three steps with an algorithm that needs nothing."""

    def make(name="harness", **sections):
        base = tiny.config(name, tmp_path, HarnessTrainer.conformance)
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

    return make


def test_a_run_and_code_give_equal_weights(tree):
    config = tree()
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


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("adapter", [None, {"r": 2, "dropout": 0.2}])
@pytest.mark.parametrize("kill_at", [2, 6, 11])
def test_killed_and_resumed_a_run_equals_the_uninterrupted_one(
    tree, tmp_path, name, adapter, kill_at
):
    if adapter is not None:
        pytest.importorskip("peft")
    config = tree(name, models={"tester": {"adapter": adapter}} if adapter else {})
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(config))
    straight = plugrl.train(config)
    runs = tmp_path / "killed"
    command = ["-m", "plugrl", "train", str(file), f"settings.runs_folder={runs}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = forking.run(command, env={**environment, "KILL_AT": str(kill_at)})
    assert killed.returncode == -signal.SIGKILL
    (folder,) = runs.glob("*/[0-9]*")
    resumed = forking.run(["-m", "plugrl", "resume", str(folder)], env=environment)
    assert resumed.returncode == 0, resumed.stderr
    again = load_run(folder)
    assert comparable(again) == comparable(straight)
    assert_equal_states(again.checkpoint()["trainer"], straight.checkpoint()["trainer"])
    if name == "hf_ast":
        for kept in ("best", "last"):
            one, other = (
                (run / "hf" / kept / "model.safetensors").read_bytes()
                for run in (folder, straight.folder)
            )
            assert one == other
