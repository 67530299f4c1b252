"""Log-probabilities of given tokens under a causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from plugrl.plugins.transformers.head import body_and_head
from plugrl.plugins.transformers.packing import Boundaries, packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.plugins.transformers.micro_batches import MicroBatch


class Forward:
    """Computes log-probabilities, and nothing that no wanted one depends on.

    What follows a row's last trained token is left out, prompts that rows share are computed once
    where they are packed, and the vocabulary projection is computed for trained tokens alone.

    Args:
        model: a causal language model.
        packs: whether the model takes packed rows; else rows are padded.
        head_chunk_tokens: tokens whose logits are there at the same time, forward and backward.
    """

    def __init__(self, model: PreTrainedModel, *, packs: bool, head_chunk_tokens: int) -> None:
        self._body, self._head = body_and_head(model)
        parameters = inspect.signature(model.base_model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self.packs = packs
        self._chunk = head_chunk_tokens

    def log_probs(self, part: MicroBatch) -> tuple[torch.Tensor, Boundaries | None]:
        """Log-probability of each token given the ones before it, [B, T], float32.

        Where ``loss_mask`` is 0, it is 0.0. Logits are divided by ``metadata["temperature"]``, one
        for all or one a row, as the sampler does. The boundaries are those to hold with ``packed``
        while gradients are taken.
        """
        values = part.batch.values
        input_ids = values["input_ids"]
        real = values["attention_mask"][:, :-1] != 0
        picked = (values["loss_mask"][:, 1:] != 0) & real
        if not bool(picked.any()):
            return torch.zeros(input_ids.shape, device=input_ids.device), None
        hidden, bounds = self._hidden(
            input_ids[:, :-1], real, values["position_ids"][:, :-1], picked, part.leaders
        )
        temperature = part.batch.metadata.get("temperature", 1.0)
        if isinstance(temperature, torch.Tensor) and bool((temperature == 1).all()):
            temperature = 1.0
        if isinstance(temperature, torch.Tensor):
            rows = temperature.to(picked.device)[:, None]
            temperature = rows.expand(picked.shape)[picked][:, None]
        chosen = self._chosen(hidden, input_ids[:, 1:][picked], temperature)
        shifted = torch.zeros(picked.shape, dtype=torch.float32, device=chosen.device)
        return torch.nn.functional.pad(shifted.masked_scatter(picked, chosen), (1, 0)), bounds

    def _hidden(
        self,
        input_ids: torch.Tensor,
        real: torch.Tensor,
        position_ids: torch.Tensor,
        picked: torch.Tensor,
        leaders: torch.Tensor,
    ) -> tuple[torch.Tensor, Boundaries | None]:
        """Last hidden states of the picked places, [P, H]: token t is predicted from t - 1."""
        columns = torch.arange(picked.shape[1], device=picked.device)
        last = torch.where(picked, columns, -1).amax(1)
        needed = real & (columns <= last[:, None])
        if not self.packs:
            more = {"position_ids": position_ids} if self._takes_positions else {}
            states = self._body(
                input_ids=input_ids, attention_mask=needed.long(), use_cache=False, **more
            ).last_hidden_state
            return states[picked], None
        # A prompt that an earlier row has too is read there; its last token predicts the first
        # picked one of either.
        prompt = columns <= picked.int().argmax(1, keepdim=True)
        follows = leaders != torch.arange(len(leaders), device=leaders.device)
        bounds, own, number = Boundaries.of(needed, needed & prompt & follows[:, None], leaders)
        tokens, positions = input_ids[own][None], position_ids[own][None]
        if bounds is None:
            shape = (int(needed.any(1).sum()), -1)
            tokens, positions = tokens.reshape(shape), positions.reshape(shape)
        with packed(bounds):
            states = self._body(
                input_ids=tokens, position_ids=positions, use_cache=False
            ).last_hidden_state
        return states.flatten(0, 1)[number[picked]], bounds

    def _chosen(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor
    ) -> torch.Tensor:
        if len(targets) <= self._chunk:
            return self._of_chunk(hidden, targets, temperature)
        states, tokens = hidden.split(self._chunk), targets.split(self._chunk)
        heat: Sequence[float | torch.Tensor] = [temperature] * len(states)
        if isinstance(temperature, torch.Tensor):
            heat = temperature.split(self._chunk)
        parts = zip(states, tokens, heat, strict=True)
        # Checkpointed, so that the backward pass holds the logits of one chunk at a time too.
        return torch.cat([checkpoint(self._of_chunk, *part, use_reentrant=False) for part in parts])

    def _of_chunk(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor
    ) -> torch.Tensor:
        logits = self._head(hidden)
        if isinstance(temperature, torch.Tensor) or temperature != 1:
            logits = logits / temperature
        # One kernel a pass in place of a maximum, a sum of exponentials and a gather.
        return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
