"""Which models the fast forward pass knows, and which are small enough to copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Models made of this layer: RMS norms before attention and MLP, rotary positions, SiLU gates.
_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})
#: Kinds of rotary positions whose angles depend on the position alone.
_ROTARY = frozenset({"default", "linear", "llama3"})
#: Larger models spend their time in matrix products, and matrices of their own take memory.
_MOST_PARAMETERS = 200_000_000


def has_fast_body(model: PreTrainedModel) -> bool:
    """Whether ``model`` consists of the layers that are known here."""
    config: Any = model.config
    rotary = getattr(model.base_model, "rotary_emb", None)
    return (
        config.model_type in _FAMILY
        and config.hidden_act == "silu"
        and getattr(rotary, "rope_type", None) in _ROTARY
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and not any(
            layer.self_attn.o_proj.bias is not None or layer.mlp.gate_proj.bias is not None
            for layer in model.base_model.layers
        )
        and not any(hooks for hooks in map(_hooks, model.base_model.modules()))
    )


def is_small(model: PreTrainedModel) -> bool:
    """Whether copies of the matrices of ``model`` are worth their memory."""
    return int(model.num_parameters()) <= _MOST_PARAMETERS


def _hooks(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
