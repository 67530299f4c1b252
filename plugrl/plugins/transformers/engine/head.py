"""Logits from the last hidden states, as the whole model computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
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


def body_and_head(
    model: PreTrainedModel,
) -> tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]:
    """What gives the hidden states of ``model`` and what makes logits of them.

    For a model whose head is not known its logits stand in place of its hidden states.
    """
    head = Head(model)
    if head.agrees_with(model):
        return model.base_model, head
    return partial(_logits_as_hidden, model), torch.Tensor.float


def _logits_as_hidden(model: PreTrainedModel, **inputs: Any) -> SimpleNamespace:
    return SimpleNamespace(last_hidden_state=model(**inputs).logits)
