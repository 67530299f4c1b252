"""Local servers that follow the documents of vLLM and SGLang, and services that ask them."""

import sys
from pathlib import Path

import pytest

from plugrl.core.config.view import ConfigView
from plugrl.core.text.services import ModelSpec
from plugrl.plugins.openai.inference_service import OpenAiInferenceService

sys.path.insert(0, str(Path(__file__).parent))
import documented_server

SOURCE = {
    "path": None,
    "config": {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 32,
        # Weights so large that answers vary.
        "initializer_range": 0.3,
    },
    "tokenizer": {"characters": "abcdefgh"},
    "dtype": "float32",
}


@pytest.fixture
def server():
    """Make a server; kinds are vllm and sglang."""
    made = []

    def make(kind="vllm", source=None, **options):
        made.append(documented_server.DocumentedServer(source or SOURCE, kind, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def connect(monkeypatch):
    """Make a service that asks a server."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = []

    def make(server, trained=True, source=None, **options):
        config = {"base_url": server.base_url, "patience": 5.0, **options}
        service = OpenAiInferenceService(config)
        made.append(service)
        view = ConfigView(source or SOURCE, checked=True)
        service.load(ModelSpec("policy", view, 0, "cpu", trained=trained))
        return service

    yield make
    for each in made:
        each.close()
