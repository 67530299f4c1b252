"""One seed, two processes with other hash seeds: equal weights, order of data and metrics."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import kills
import pytest
import text_agents
from waiting import DEADLINE

DRIVER = Path(__file__).parents[1] / "support" / "hash_seeds.py"
DEBATE = {"type": "debate", "max_message_rounds": 3}


def small_networks(trainer, scenario, body, **sections):
    return {
        "experiment_name": trainer,
        "seed": 3,
        "scenario": {**scenario, "num_envs": 8},
        "agents": {"_default": {"body": body}},
        "trainer": {"type": trainer},
        "rl": {"num_iterations": 2, "frames_per_batch": 64, "minibatch_size": 32, "num_epochs": 1},
        "validate": {"every": 1, "episodes": 16},
        **sections,
    }


def tensors():
    digits = {"type": "image_classification", "max_train_size": 64, "protocol": DEBATE}
    graphs = {
        "type": "graph_isomorphism",
        "train_size": 64,
        "protocol": {"type": "zero_knowledge", "base": {"type": "nip", "max_message_rounds": 4}},
    }
    pointing = {"type": "graph_pair", "width": 8}
    return {
        "digits": small_networks("vanilla_ppo", digits, {"type": "image_latent"}),
        "graphs": small_networks("reinforce", graphs, pointing),
        "leaders": small_networks("spg", digits, {"type": "mlp", "hidden": [8]}),
    }


def texts(folder):
    trees = {}
    for trainer in ("ei_pure_text", "malt_pure_text"):
        section = {"reward_threshold": -1.0} if trainer == "ei_pure_text" else {}
        trees[trainer] = text_agents.config(trainer, folder, trainer=section)
        trees[trainer] |= {"experiment_name": trainer, "seed": 0}
    learned = text_agents.config("grpo_pure_text", folder, trainer={"total_train_steps": 2})
    learned["models"]["policy"].pop("fine_tune")
    learned["models"]["policy"]["train"] = {"type": "local", "learning_rate": 0.01}
    learned.pop("text_rl")
    learned |= {"experiment_name": "grpo_pure_text", "seed": 0}
    learned["data"] |= {"rollout_repeat_n": 2}
    trees["grpo_pure_text"] = learned
    return trees


def trained(folder, trees, seed):
    file = folder / "trees.json"
    file.write_text(json.dumps(trees), "utf-8")
    # Not forked, because an interpreter has its hash seed from its start.
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(file), str(folder / f"runs-{seed}")],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


SMALL = ["digits", "graphs", "leaders"]
TEXTS = ["ei_pure_text", "malt_pure_text", "grpo_pure_text"]


@pytest.mark.parametrize(
    "names", kills.tiers([["leaders", "malt_pure_text", "grpo_pure_text"]], [SMALL + TEXTS])
)
def test_processes_with_other_hash_seeds_train_alike(tmp_path, names):
    staged = {"ei_pure_text", "malt_pure_text"}
    trees = tensors() | texts(tmp_path)
    assert list(trees) == SMALL + TEXTS
    trees = {name: trees[name] for name in names}
    first, second = (trained(tmp_path, trees, seed) for seed in (1, 2))
    assert first.keys() == trees.keys()
    for name in trees:
        assert first[name]["metrics"] == second[name]["metrics"], name
        assert len(first[name]["metrics"]) >= 2
        assert first[name]["rollouts"] == second[name]["rollouts"], name
        # A trainer that takes gradients writes no jobs.
        assert bool(first[name]["rollouts"]) == (name in staged)
        assert first[name]["state"] == second[name]["state"], name
        # Not nothing: weights are in one of them.
        kept = first[name]["rollouts" if name in staged else "state"]
        assert len(re.findall(r"\b[0-9a-f]{64}\b", json.dumps(kept))) >= 2
