"""A small model that adds a little, a real server of it, and runs over both."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
import yaml

from plugrl.plugins.transformers.tokenizer import character_tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from tinker_server import CannotBuild, serving  # noqa: E402

CHARACTERS = "0123456789+="
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


def taught(accuracy: float, steps: int = 400) -> torch.nn.Module:
    """A Qwen3 model that adds two numbers of two digits with some accuracy."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = character_tokenizer(CHARACTERS)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=tokenizer.vocabulary_size, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        **SIZES,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(1).shuffle(pairs)
    rows = [[*tokenizer.encode(f"{a:02d}+{b:02d}={a + b:03d}"), 1] for a, b in pairs[:3300]]
    tokens = torch.tensor(rows)
    seen, held_out = tokens[:3000], tokens[3000:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for step in range(steps):
        batch = seen[torch.randint(0, len(seen), (128,))]
        logits = model(batch).logits[:, 5:9]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 6:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9:
            with torch.no_grad():
                answers = model(held_out).logits[:, 5:9].argmax(-1)
            if (answers == held_out[:, 6:]).all(1).float().mean() >= accuracy:
                break
    return model


@pytest.fixture(scope="session")
def adder(tmp_path_factory):
    """The folder of a model that is right on about a fifth of the problems, and its tokenizer."""
    folder = tmp_path_factory.mktemp("adder") / "base"
    taught(0.2).save_pretrained(folder)
    character_tokenizer(CHARACTERS).wrapped.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(adder, tmp_path_factory):
    """A server of ``adder``, the same for all tests of a session."""
    try:
        with serving(adder, tmp_path_factory.mktemp("server")) as running:
            yield running
    except CannotBuild as error:
        pytest.skip(f"no server of the Tinker API: {error}")


@pytest.fixture
def own_server(adder, tmp_path):
    """A server that a test may kill."""
    try:
        with serving(adder, tmp_path) as running:
            yield running
    except CannotBuild as error:
        pytest.skip(f"no server of the Tinker API: {error}")


@pytest.fixture
def tree(tmp_path, adder):
    """Makes the configuration of a small run; ``url``: of the server."""

    def make(url, trainer="remote_api_cross_entropy", **changes):
        supervised = trainer == "remote_api_cross_entropy"
        service = {
            "type": "tinker", "base_url": url, "base_model": str(adder), "patience": 8.0,
            "timeout": 120.0,
        }  # fmt: skip
        own = {"lora_rank": 8, "learning_rate": 0.004, "weight_decay": 0.0}
        made = {
            "experiment_name": "tinker",
            "seed": 0,
            "scenario": {"type": "arithmetic", "digits": 2, "demonstrations": 64, "validation": 8},
            "models": {
                "policy": {
                    "source": {"path": str(adder)}, "inference": service,
                    "train": {**service, **own},
                }
            },
            "data": {
                "split": "demonstrations" if supervised else "train",
                "batch_size": 8 if supervised else 2,
                "rollout_repeat_n": 1 if supervised else 4,
            },
            "rollout_worker": {
                "type": "demonstration" if supervised else "single_turn",
                "max_prompt_length": 6, "max_response_length": 4, "evaluator": "exact_match",
            },
            "validate": {"enabled": False},
            "trainer": {"type": trainer, "total_train_steps": 2},
            "settings": {"runs_folder": str(tmp_path / "runs"), "checkpoint_every": 1},
        }  # fmt: skip
        for path, value in changes.items():
            *above, last = path.split("__")
            place = made
            for key in above:
                place = place.setdefault(key, {})
            place[last] = value
        return made

    return make


@pytest.fixture
def written(tmp_path):
    """Writes a configuration into a file, for commands."""

    def write(tree):
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(tree))
        return file

    return write
