"""A tiny Qwen3-shaped model for both services."""

import pytest

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.services import ModelSpec
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

# Tiny decoders of several kinds, with weights so large that their answers vary.
_COMMON = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
_WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}

ARCHITECTURES = {
    "qwen3": _COMMON,
    "qwen3 tied": {**_COMMON, "model_type": "qwen3", "tie_word_embeddings": True},
    "llama": _COMMON,
    # Projections with a bias.
    "qwen2": _COMMON,
    # Every layer sees the last four tokens only.
    "mistral": {**_COMMON, "sliding_window": 4},
    # One layer has a window, the other has none; logits are capped softly.
    "gemma2": {**_COMMON, **_WINDOW, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0},
    # Learned positions.
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3},
    # Positions as a bias of attention, made from the mask.
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    # Logits are scaled behind the projection.
    "granite": {**_COMMON, "logits_scaling": 3.0},
    # A layer with a state instead of keys and values: rows cannot join while others decode.
    "lfm2": {**_COMMON, "layer_types": ["conv", "full_attention"]},
}


def spec(**changes):
    return ModelSpec("policy", ConfigView({**SOURCE, **changes}, checked=True), 0, "cpu")


def architecture(name):
    config = {"model_type": name.split()[0], **ARCHITECTURES[name]}
    return spec(config=config, tokenizer={"characters": "abcdefghijklmnop"})


@pytest.fixture
def engine():
    service = TransformersInferenceService({})
    service.load(spec())
    return service


@pytest.fixture
def train_service():
    def make(model=None, /, **options):
        service = LocalTrainService({"learning_rate": 0.01, **options})
        service.load(model or spec())
        return service

    return make


_gradient_services = {}


@pytest.fixture
def gradient_service():
    """Makes services for tests that neither take steps nor change them: each but once.

    Args of what it gives: the name of an architecture, and options.
    """

    def make(name=None, /, **options):
        key = (name, *sorted(options.items()))
        if key not in _gradient_services:
            service = LocalTrainService({"learning_rate": 0.01, **options})
            service.load(spec() if name is None else architecture(name))
            _gradient_services[key] = service
        service = _gradient_services[key]
        for parameter in (*service.module.parameters(), *service.parameters()):
            parameter.grad = None
        return service

    return make


@pytest.fixture
def architecture_spec():
    """The model of an architecture by name."""
    return architecture


@pytest.fixture(name="spec")
def spec_fixture():
    return spec


_engines = {}


@pytest.fixture(params=ARCHITECTURES)
def any_engine(request):
    """An engine with a model of each architecture, for tests that leave it as it is."""
    if request.param not in _engines:
        _engines[request.param] = TransformersInferenceService({})
        _engines[request.param].load(architecture(request.param))
    return _engines[request.param]


@pytest.fixture
def engine_like():
    """Makes another engine with the weights of one."""

    def make(engine, **options):
        other = TransformersInferenceService(options)
        vars(other).update({k: v for k, v in vars(engine).items() if k != "config"})
        return other

    return make
