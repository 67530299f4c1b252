"""Local servers that follow the documents of vLLM and SGLang, and services that ask them."""

import sys
from pathlib import Path

import pytest
from certificates import one_tls_context  # noqa: F401

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.openai.inference_service import OpenAiInferenceService

sys.path.insert(0, str(Path(__file__).parent))
import documented_server
from documented_server import SOURCE


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
