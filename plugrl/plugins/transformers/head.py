"""Logits from the last hidden states, as the whole model computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Head:
    """The projection to the vocabulary of a model, with what the model does behind it.

    Some models scale their logits (Cohere, Granite) or cap them softly (Gemma).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._projection = model.get_output_embeddings()
        config: Any = model.config.get_text_config(decoder=True)
        self._scale = getattr(config, "logit_scale", None)
        self._divisor = getattr(config, "logits_scaling", None)
        self._cap = getattr(config, "final_logit_softcapping", None)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits in float32, [..., V], of hidden states [..., H]."""
        logits: torch.Tensor = self._projection(hidden).float()
        if self._scale:
            logits = logits * self._scale
        if self._divisor:
            logits = logits / self._divisor
        if self._cap:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits

    @torch.no_grad()
    def agrees_with(self, model: PreTrainedModel) -> bool:
        """Whether these are the model's own logits, found by trying two tokens."""
        tokens = torch.tensor([[0, 1]], device=model.device)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        own = model(**inputs, use_cache=False).logits.float()
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
        # Half precision rounds what is scaled behind the projection at another place.
        allowed = 1e-5 if model.dtype == torch.float32 else 0.02
        return torch.allclose(own, self(hidden), rtol=allowed, atol=allowed)
