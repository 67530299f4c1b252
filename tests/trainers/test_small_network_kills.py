"""Trainers of small networks, killed at random moments and resumed, lose nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import kills
import pytest
import yaml

from plugrl.core.experiment import load_run
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable_metrics

CARTPOLE = {"type": "gymnasium", "id": "CartPole-v1"}
PENDULUM = {"type": "gymnasium", "id": "Pendulum-v1", "num_envs": 1}
#: Some iterations without updates, then some with sixteen each.
OFF_POLICY = {"frames_per_batch": 16, "minibatch_size": 16}
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
        "rl": {"frames_per_batch": 64, "optimizer": "rmsprop"},
    },
    "gsde": {
        "trainer": "vanilla_ppo",
        "scenario": {**PENDULUM, "num_envs": 2},
        "agents": {"_default": {"policy_head": {"use_sde": True, "sde_sample_freq": 5}}},
        "rl": {"frames_per_batch": 64},
        "ppo": {"anneal_clip": True},
    },
    "turns": {
        "trainer": "vanilla_ppo",
        "scenario": {
            "type": "image_classification",
            "protocol": {"type": "zero_knowledge", "base": {"type": "debate"}},
            "num_envs": 8,
        },
        "agents": {"_default": {"body": {"type": "mlp", "hidden": [8]}}},
        "rl": {"frames_per_batch": 64, "num_epochs": 1},
        "message_regression": {"enabled": True, "reset_on_fit": False, "test_size": 0.5},
    },
    "self_play": {
        "trainer": "vanilla_ppo",
        "scenario": {"type": "pettingzoo", "environment": "tictactoe_v3", "num_envs": 8},
        "agents": {"_default": {"policy": "player"}},
        "rl": {"frames_per_batch": 128},
        "validate": {"every": 1, "episodes": 4, "opponent": "random"},
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
        "solo_agent": {"batch_size": 50},
        "rl": {"frames_per_batch": 64},
    },
    "spg": {
        "scenario": {"type": "image_classification", "protocol": "nip", "num_envs": 8},
        "agents": {"_default": {"body": {"type": "mlp", "hidden": [8]}}},
        "rl": {"frames_per_batch": 64, "num_epochs": 2},
        "spg": {"variant": "pspg"},
    },
    "dqn": {"scenario": {**CARTPOLE, "num_envs": 1}, "rl": {"frames_per_batch": 64}},
    "sac": {"scenario": PENDULUM, "rl": OFF_POLICY, "sac": {"learning_starts": 64}},
    "td3": {"scenario": PENDULUM, "rl": OFF_POLICY, "td3": {"learning_starts": 64}},
    # Noise is held over the end of an iteration.
    "sac_gsde": {
        "trainer": "sac",
        "scenario": PENDULUM,
        "agents": {"_default": {"policy_head": {"use_sde": True}}},
        "rl": OFF_POLICY,
        "sac": {"learning_starts": 32, "train_freq": 7},
    },
}


#: One kill of one of each kind in integration: a batch of one agent, of several agents, phases or
#: a leader, a replay buffer.
KINDS = [
    ["vanilla_ppo", "reinforce", "a2c", "gsde"],
    ["turns", "self_play"],
    ["alone", "spg"],
    ["dqn", "sac", "td3", "sac_gsde"],
]
DRAWN = [random.Random(number).choice(kind) for number, kind in enumerate(KINDS)]


def test_each_trainer_is_of_a_kind() -> None:
    assert sorted(trainer for kind in KINDS for trainer in kind) == sorted(TRAINERS)


@pytest.mark.parametrize(
    ("number", "trainer"), kills.tiers([(1, t) for t in DRAWN], [(5, t) for t in TRAINERS])
)
def test_killed_and_resumed_it_equals_the_uninterrupted_run(
    trainer: str, number: int, tmp_path: Path
) -> None:
    tree = {
        "trainer": trainer,
        "validate": {"every": 6, "episodes": 2},
        "settings": {"checkpoint_every": 2, "progress": "none"},
        **TRAINERS[trainer],
    }
    steps = number * kills.MOST_LINES
    tree["rl"] = {**tree["rl"], "num_iterations": steps}
    if trainer == "alone":
        # It has two phases.
        tree["solo_agent"] = {**tree["solo_agent"], "num_epochs": steps // 2}
        tree["rl"]["num_iterations"] = steps // 2
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree), "utf-8")
    straight = tmp_path / "straight"
    kills.finish("train", recipe, f"settings.runs_folder={straight}")
    (expected,) = straight.glob("*/[0-9]*")

    runs = tmp_path / "killed"
    words = ["train", recipe, f"settings.runs_folder={runs}"]
    for line, seconds in kills.moments(trainer, number, 0.1):
        kills.kill(line, seconds, *words)
        (folder,) = runs.glob("*/[0-9]*")
        words = ["resume", folder]
    kills.finish(*words)
    got, want = load_run(folder), load_run(expected)
    assert comparable_metrics(got) == comparable_metrics(want)
    assert_equal_states(got.checkpoint()["trainer"], want.checkpoint()["trainer"])
