"""Log-probabilities of given tokens under a causal language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def token_log_probs(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    position_ids: torch.Tensor,
    wanted: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Log-probability of each token given the ones before it, [B, T], float32.

    Only positions where ``wanted`` ([B, T]) is not 0 are computed, the others are 0.0: the
    vocabulary projection is the dearest part of a forward pass. Logits are divided by
    ``temperature`` first, as the sampler does.
    """
    # Nothing follows the last token, so what the model makes of it is not needed.
    hidden = model.base_model(
        input_ids=input_ids[:, :-1],
        attention_mask=attention_mask[:, :-1],
        position_ids=position_ids[:, :-1],
        use_cache=False,
    ).last_hidden_state
    picked = wanted[:, 1:] != 0
    logits = model.get_output_embeddings()(hidden[picked]).float() / temperature
    targets = input_ids[:, 1:][picked]
    chosen = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
    shifted = torch.zeros(picked.shape, dtype=torch.float32, device=chosen.device)
    shifted = shifted.masked_scatter(picked, chosen)
    return torch.nn.functional.pad(shifted, (1, 0))
