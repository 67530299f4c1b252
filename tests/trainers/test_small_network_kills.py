"""Trainers of small networks, killed at random moments and resumed, lose nothing."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import forking
import pytest
import yaml

from plugrl.core.experiment import load_run
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable

pytestmark = pytest.mark.integration
DRIVER = Path(__file__).with_name("waiting_driver.py")
KILLS = 5
#: The lines of metrics that a process writes before it waits for its end: the kills come before
#: the run's, which takes 40 or more.
LINES_EACH = 7

CARTPOLE = {"type": "gymnasium", "id": "CartPole-v1"}
PENDULUM = {"type": "gymnasium", "id": "Pendulum-v1", "num_envs": 1}
TRAINERS: dict[str, dict[str, Any]] = {
    "vanilla_ppo": {
        "scenario": {**CARTPOLE, "num_envs": 3},
        "rl": {
            "frames_per_batch": 96,
            "normalize_observations": True,
            "normalize_rewards": True,
            "anneal_lr": True,
        },
        "ppo": {"loss_type": "kl_penalty"},
    },
    "reinforce": {
        "scenario": {**CARTPOLE, "num_envs": 8, "vectorization": "native"},
        "rl": {"frames_per_batch": 256},
    },
    "a2c": {
        "scenario": {**CARTPOLE, "num_envs": 2, "vectorization": "async"},
        "rl": {"frames_per_batch": 64},
    },
    "turns": {
        "trainer": "vanilla_ppo",
        "scenario": {
            "type": "image_classification",
            "protocol": {"type": "zero_knowledge", "base": {"type": "debate"}},
            "num_envs": 8,
        },
        "agents": {"_default": {"body": {"type": "mlp", "hidden": [8]}}},
        "rl": {"frames_per_batch": 64},
        "message_regression": {"enabled": True, "reset_on_fit": False, "test_size": 0.5},
    },
    "alone": {
        "trainer": {
            "type": "sequence",
            "phases": [
                {"name": "alone", "trainer": {"type": "solo_agent"}},
                {"name": "together", "trainer": {"type": "reinforce"}},
            ],
        },
        "scenario": {"type": "image_classification", "num_envs": 8, "max_train_size": 200},
        "agents": {"prover": {"body": {"type": "image_latent"}}},
        "solo_agent": {"num_epochs": 30, "batch_size": 50},
        "rl": {"frames_per_batch": 64, "num_iterations": 20},
    },
    "spg": {
        "scenario": {"type": "image_classification", "protocol": "nip", "num_envs": 8},
        "agents": {"_default": {"body": {"type": "mlp", "hidden": [8]}}},
        "rl": {"frames_per_batch": 64},
        "spg": {"variant": "pspg"},
    },
    "dqn": {"scenario": {**CARTPOLE, "num_envs": 1}, "rl": {"frames_per_batch": 64}},
    "sac": {"scenario": PENDULUM, "rl": {"frames_per_batch": 64}},
    "td3": {"scenario": PENDULUM, "rl": {"frames_per_batch": 64}},
}


def steps_of(runs: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in runs.glob("*/[0-9]*/metrics.jsonl"))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_killed_and_resumed_it_equals_the_uninterrupted_run(trainer: str, tmp_path: Path) -> None:
    tree = {
        "trainer": trainer,
        "validate": {"every": 6, "episodes": 2},
        "settings": {"checkpoint_every": 3, "progress": "none"},
        **TRAINERS[trainer],
    }
    tree["rl"] = {"num_iterations": 40, **tree["rl"]}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree))
    straight = tmp_path / "straight"
    words = ["train", str(recipe), f"settings.runs_folder={straight}"]
    forking.run(["-m", "plugrl", *words], check=True)
    (expected,) = straight.glob("*/[0-9]*")

    runs, moments = tmp_path / "killed", random.Random(trainer)
    words = ["train", str(recipe), f"settings.runs_folder={runs}"]
    for _ in range(KILLS):
        process = forking.Process(
            [DRIVER, LINES_EACH, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        before = steps_of(runs)
        forking.kill_when(
            process,
            lambda before=before: steps_of(runs) > before,
            delay=moments.uniform(0, 0.1),
        )
        (folder,) = runs.glob("*/[0-9]*")
        words = ["resume", str(folder)]
    forking.run(["-m", "plugrl", *words], check=True)
    got, want = load_run(folder), load_run(expected)
    assert comparable(got) == comparable(want)
    assert_equal_states(got.checkpoint()["trainer"], want.checkpoint()["trainer"])
