"""What can be said about a model from its configuration alone, without its weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def _configuration(source: Any) -> Any:
    from transformers import AutoConfig

    if source.path:
        return AutoConfig.from_pretrained(os.path.expanduser(source.path), local_files_only=True)
    options: dict[str, Any] = source.config.to_dict()
    return AutoConfig.for_model(options.pop("model_type"), **options)


def context_length(source: Any) -> int | None:
    """The longest sequence of the model of ``source``; None: it has no limit or no such model."""
    try:
        length = getattr(_configuration(source), "max_position_embeddings", None)
    except Exception:
        # Another finding says what is wrong with the source.
        return None
    return length if isinstance(length, int) else None


def vocabulary_size(source: Any, tokenizer: Any) -> int:
    """How many tokens the model of ``source`` has, at least those of its tokenizer."""
    known = int(tokenizer.vocabulary_size)
    try:
        return max(known, int(getattr(_configuration(source), "vocab_size", 0) or 0))
    except Exception:
        # A folder may hold a tokenizer alone.
        return known


def layer_names(source: Any) -> Sequence[str]:
    """The names of all layers of the model of ``source``; empty: there is no such model."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_config(_configuration(source))
    except Exception:
        return ()
    return [name for name, _ in model.named_modules() if name]
