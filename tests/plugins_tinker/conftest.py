"""Small models, servers of them, and configurations of runs over both.

Most tests run against a server of the public wire format in this process; ``-m server`` runs them
against an installed one.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import torch
from certificates import one_tls_context  # noqa: F401
from transformers import Qwen3Config, Qwen3ForCausalLM
from waiting import DEADLINE

from plugrl.core.config.view import ConfigView
from plugrl.plugins.tinker.connection import Connection
from plugrl.plugins.transformers.tokenizer import character_tokenizer

sys.path.insert(0, str(Path(__file__).parent))

import installed_server  # noqa: E402
from wire_server import WireServer  # noqa: E402

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


def untaught(**sizes) -> torch.nn.Module:
    """A Qwen3 model with weights of a fixed seed."""
    vocabulary = character_tokenizer(CHARACTERS).vocabulary_size
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=vocabulary, pad_token_id=0, eos_token_id=1, bos_token_id=None,
                **SIZES | sizes,
            )
        )  # fmt: skip


def taught(accuracy: float, steps: int = 400) -> torch.nn.Module:
    """A Qwen3 model that adds two numbers of two digits with some accuracy."""
    tokenizer = character_tokenizer(CHARACTERS)
    torch.manual_seed(0)
    model = untaught()
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


def written_model(folder: Path, model: torch.nn.Module) -> Path:
    """Write a model with its tokenizer."""
    model.save_pretrained(folder)
    character_tokenizer(CHARACTERS).wrapped.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def adder(tmp_path_factory):
    """The folder of a model that is right on about a fifth of the problems, and its tokenizer."""
    return written_model(tmp_path_factory.mktemp("adder") / "base", taught(0.2))


@pytest.fixture(scope="session")
def beginner(tmp_path_factory):
    """The folder of a smaller model that can nothing yet, and its tokenizer."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "head_dim": 8, "initializer_range": 0.3}
    model = untaught(**{**sizes, "num_attention_heads": 2, "num_key_value_heads": 1})
    return written_model(tmp_path_factory.mktemp("beginner") / "base", model)


def serving(request, folder: Path):
    """The server that the parameter of a fixture stands for; ``servers.against`` gives it one."""
    if request.param == "installed":
        return installed_server.serving(request.getfixturevalue("adder"), folder)
    return WireServer(request.getfixturevalue(request.param))


@pytest.fixture(scope="session")
def server(request, tmp_path_factory):
    """A server, the same for all tests of a session."""
    with serving(request, tmp_path_factory.mktemp("server")) as running:
        # Services share the session that this opens, instead of one for each test.
        about = {"base_url": running.url, "api_key": None}
        about |= {"timeout": DEADLINE, "patience": DEADLINE}
        session = Connection.shared(ConfigView(about))
        yield running
        del session


@pytest.fixture
def own_server(request, tmp_path):
    """A server that a test may end."""
    with serving(request, tmp_path) as running:
        yield running
        running.go_on()


@pytest.fixture(autouse=True)
def no_account(monkeypatch):
    """Nobody's account or server is used by these tests."""
    for name in list(os.environ):
        if name.startswith(("TINKER_", "WEAVER_")):
            monkeypatch.delenv(name)


def pytest_itemcollected(item):
    """A test against an installed server is of that tier alone, whichever its twin here is of."""
    if item.get_closest_marker("server"):
        item.own_markers[:] = [m for m in item.own_markers if m.name not in ("integration", "slow")]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Say before the first test what those of installed servers need."""
    if hasattr(config, "workerinput"):  # xdist shows no usage error of a worker.
        return
    here = Path(__file__).parent
    wanted = any(item.get_closest_marker("server") and here in item.path.parents for item in items)
    if wanted and installed_server.VARIABLE not in os.environ:
        raise pytest.UsageError(installed_server.UNSET)


@pytest.fixture
def tree(tmp_path):
    """Makes the configuration of a small run over a server, which has ``url`` and ``model``."""

    def make(server, trainer="remote_api_cross_entropy", *, patience=DEADLINE, **changes):
        supervised = trainer == "remote_api_cross_entropy"
        service = {
            "type": "tinker", "base_url": server.url, "base_model": server.model,
            "patience": patience, "timeout": DEADLINE,
        }  # fmt: skip
        own = {"lora_rank": 8, "learning_rate": 0.004, "weight_decay": 0.0}
        made = {
            "experiment_name": "tinker",
            "seed": 0,
            "scenario": {
                "type": "arithmetic", "digits": 2, "demonstrations": 64, "validation": 8,
                "development": 8,
            },
            "models": {
                "policy": {
                    "source": {"path": server.model}, "inference": service,
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
            "settings": {
                "runs_folder": str(tmp_path / "runs"), "checkpoint_every": 1, "progress": "none",
            },
        }  # fmt: skip
        for path, value in changes.items():
            *above, last = path.split("__")
            place = made
            for key in above:
                place = place.setdefault(key, {})
            place[last] = value
        return made

    return make
