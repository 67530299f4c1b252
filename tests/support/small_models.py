"""Language models of a few thousand random weights, and engines that have loaded them."""

from plugrl.core.config.view import ConfigView
from plugrl.core.text.inference.services import ModelSpec
from plugrl.plugins.transformers.inference_service import TransformersInferenceService


def small_source(characters, template=None, positions=512, spread=0.3):
    """The section ``source`` of a model.

    Args:
        characters: its tokens, one a letter.
        template: the chat template; None: there is none.
        positions: tokens of its context.
        spread: of the weights; so large that answers vary.
    """
    tokenizer = {"characters": characters}
    return {
        "config": {
            "model_type": "qwen3",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": positions,
            "initializer_range": spread,
        },
        "tokenizer": tokenizer if template is None else {**tokenizer, "chat_template": template},
    }


def small_engine(*words, **options):
    """The engine of :func:`small_source`, on the CPU."""
    source = {"path": None, "dtype": "float32", **small_source(*words, **options)}
    service = TransformersInferenceService({})
    service.load(ModelSpec("policy", ConfigView(source, checked=True), 0, "cpu"))
    return service
