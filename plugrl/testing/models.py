"""Models of a few hundred weights, as services load them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.core.config.check import configure
from plugrl.core.text.dialogue.language_models import ModelsSection
from plugrl.core.text.inference.services import ModelSpec

#: Letters, and messages that begin with their role and end with the end token.
TOKENIZER: Mapping[str, Any] = {
    "characters": "".join(map(chr, range(32, 127))) + "\n",
    "chat_template": (
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    ),
}
SOURCE: Mapping[str, Any] = {
    "config": {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,
    },
    "tokenizer": TOKENIZER,
}


def spec_of(
    source: Mapping[str, Any], *, seed: int = 0, trained: bool = False, steps: int | None = 4
) -> ModelSpec:
    """What a service is given to load the model of a section ``source``."""
    section: Any = configure(ModelsSection, {"models": {"policy": {"source": dict(source)}}})
    view = section.models["policy"].source
    return ModelSpec("policy", view, seed, "cpu", trained=trained, train_steps=steps)
