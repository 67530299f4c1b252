"""A tiny Qwen3-shaped model for both services."""

import pytest

from plugrl.core.config.view import ConfigView
from plugrl.core.text.services import ModelSpec
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.plugins.transformers.train_service import LocalTrainService

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
    },
    "tokenizer": {"characters": "abcdefgh"},
    "dtype": "float32",
}


def spec(**changes):
    return ModelSpec("policy", ConfigView({**SOURCE, **changes}, checked=True), 0, "cpu")


@pytest.fixture
def engine():
    service = TransformersInferenceService({})
    service.load(spec())
    return service


@pytest.fixture
def train_service():
    def make(**options):
        service = LocalTrainService({"learning_rate": 0.01, **options})
        service.load(spec())
        return service

    return make


@pytest.fixture(name="spec")
def spec_fixture():
    return spec
