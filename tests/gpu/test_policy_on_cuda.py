"""Runs with terms, a reference and a value head on a CUDA device."""

import copy
import math

import pytest
import torch

import plugrl
from plugrl.testing import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
ALGORITHM = {
    "advantage": "gae",
    "entropy_coefficient": 0.01,
    "kl": {"reward": {"coefficient": 0.1}, "loss": {"coefficient": 0.1}},
    "sampler_correction": {"level": "token"},
}


def trained(folder, trainer, algorithm, dtype):
    tree = tiny.config(trainer, folder)
    policy = tree["models"]["policy"]
    policy["source"]["dtype"] = dtype
    for name in ("reference", "teacher"):
        tree["models"][name] = {"source": {**copy.deepcopy(policy["source"]), "seed": 1}}
    policy["train"]["value_head"] = True
    tree["trainer"] |= {"algorithm": algorithm, "total_train_steps": 4}
    tree["validate"] = {"enabled": False}
    tree["settings"]["device"] = "cuda"
    return [m for m in plugrl.train(tree).metrics if "train/loss" in m]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("trainer", "algorithm"),
    [
        ("self_hosted_grpo", ALGORITHM),
        ("self_hosted_grpo", {"loss": "gspo", "advantage": "turn_grpo", "minibatches": 2}),
        ("self_hosted_opd", {"loss": "reverse_kl"}),
    ],
)
def test_runs_are_finite_and_the_ratio_is_one(tmp_path, trainer, algorithm, dtype):
    lines = trained(tmp_path, trainer, algorithm, dtype)
    assert lines
    for line in lines:
        assert all(math.isfinite(value) for value in line.values())
        if "train/sampler_ratio" in line:
            allowed = 1e-3 if dtype == "float32" else 0.05
            assert line["train/sampler_ratio"] == pytest.approx(1.0, abs=allowed)
