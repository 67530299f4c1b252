"""``settings.deterministic``: two runs in processes of their own are one another's equals."""

import json
import subprocess
import sys

import pytest
import torch

from plugrl.core.experiment import load_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
#: Long rows of one prompt, so that many threads add to one gradient, in the precision of models.
PROGRAM = """
import sys
from pathlib import Path
import plugrl
from plugrl.testing import tiny

def letters(prompts, completions, **columns):
    return [text.count("a") + 0.1 * text.count("b") for text in completions]


folder, device, compiled = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
source = {
    "config": {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "max_position_embeddings": 256, "initializer_range": 0.1,
    },
    "tokenizer": {"characters": "abcdefghijklmnop"},
    "dtype": "bfloat16",
}
policy = {
    "source": source,
    "inference": {"type": "transformers", "compile": compiled},
    "train": {"compile": compiled},
}
plugrl.train(tiny.config("self_hosted_grpo", folder, {
    "models": {"policy": policy},
    "data": {"batch_size": 4, "rollout_repeat_n": 16},
    "rollout_worker": {"max_response_length": 200, "evaluator": None},
    "trainer": {"total_train_steps": 3},
    "validate": {"enabled": False},
    "settings": {"device": device, "deterministic": True, "rollout_samples": 10_000},
}), reward=letters)
"""


def tensors(tree, path=""):
    """The tensors of a checkpoint by their place in it."""
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    if isinstance(tree, dict):
        tree = tree.items()
    elif isinstance(tree, (list, tuple)):
        tree = enumerate(tree)
    else:
        return {}
    found = {}
    for key, value in tree:
        found |= tensors(value, f"{path}/{key}")
    return found


def outcome(folder, compiled):
    """The tokens of all attempts, and all that was learned."""
    folder.mkdir()
    words = [sys.executable, "-c", PROGRAM, str(folder), "cuda", str(compiled)]
    subprocess.run(words, check=True)
    (run,) = folder.glob("runs/conformance/*")
    lines = (run / "samples" / "rollouts.jsonl").read_text(encoding="utf-8").splitlines()
    sampled = [(one["step"], one["tokens"], one["reward"]) for one in map(json.loads, lines)]
    return sampled, tensors(load_run(run).checkpoint()["trainer"])


@pytest.mark.parametrize("compiled", [False, True])
def test_two_runs_sample_equal_tokens_and_end_with_equal_weights(tmp_path, compiled):
    (answers, learned), (again, also) = (
        outcome(tmp_path / name, compiled) for name in ("one", "other")
    )
    assert len(answers) == 3 * 64
    assert answers == again
    assert len(learned) > 20
    assert learned.keys() == also.keys()
    for name, tensor in learned.items():
        assert torch.equal(tensor, also[name]), name
    # They learned something at all.
    first, last = ([r for step, _, r in answers if step == s] for s in (1, 3))
    assert first != last


def test_memory_that_others_hold_decides_nothing():
    from plugrl.core.run.process import determinism
    from plugrl.core.run.process.memory import free_bytes

    total = torch.cuda.get_device_properties("cuda").total_memory
    try:
        for wish in (False, True):
            determinism.configure(wish)
            assert (free_bytes("cuda") == total - torch.cuda.memory_allocated()) is wish
    finally:
        determinism.configure(False)
