"""Log-probabilities of given tokens under a causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from plugrl.plugins.transformers.head import body_and_head
from plugrl.plugins.transformers.lean_training import LeanTraining
from plugrl.plugins.transformers.packing import Boundaries, Packing, packed

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
        lean: the same model where it is to be run in this way.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        packs: bool,
        head_chunk_tokens: int,
        lean: LeanTraining | None = None,
    ) -> None:
        self._body, self._head = body_and_head(model)
        parameters = inspect.signature(model.base_model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self.packs = packs
        #: Makes a number of a hidden state, where the service has a value head.
        self.value_head: torch.nn.Linear | None = None
        self._device = model.device
        self._chunk = head_chunk_tokens
        self._lean = lean

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
        temperature = _temperature(part, picked)
        inputs = (
            input_ids[:, :-1], values["position_ids"][:, :-1], _needed(real, picked), picked
        )
        targets = input_ids[:, 1:][picked]
        bounds = None
        if self.packs:
            packing = Packing.of(*inputs, part.leaders)
            bounds = packing.bounds
            chosen = self._of_packed(packing, targets, temperature)
        else:
            chosen = self._chosen(self._padded(*inputs), targets, temperature)
        shifted = torch.zeros(picked.shape, dtype=torch.float32, device=chosen.device)
        return torch.nn.functional.pad(shifted.masked_scatter(picked, chosen), (1, 0)), bounds

    def _padded(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        needed: torch.Tensor,
        picked: torch.Tensor,
    ) -> torch.Tensor:
        """Last hidden states of the picked places, [P, H]: token t is predicted from t - 1."""
        more = {"position_ids": position_ids} if self._takes_positions else {}
        states: torch.Tensor = self._body(
            input_ids=input_ids,
            attention_mask=needed.long(),
            use_cache=False,
            **more,
        ).last_hidden_state
        return states[picked]

    def _of_packed(
        self, packing: Packing, targets: torch.Tensor, temperature: float | torch.Tensor
    ) -> torch.Tensor:
        lean = self._lean
        if (
            lean is not None
            and not isinstance(temperature, torch.Tensor)
            and len(targets) <= self._chunk
            and lean.takes(packing.width)
        ):
            return lean.log_probs(packing, targets, temperature)
        with packed(packing.bounds):
            states = self._body(
                input_ids=packing.tokens, position_ids=packing.positions, use_cache=False
            ).last_hidden_state
        return self._chosen(states.flatten(0, 1)[packing.places], targets, temperature)

    def _chosen(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float | torch.Tensor,
        of_chunk: Callable[..., torch.Tensor] | None = None,
    ) -> torch.Tensor:
        of_chunk = of_chunk or self._of_chunk
        if len(targets) <= self._chunk:
            return of_chunk(hidden, targets, temperature)
        states, tokens = hidden.split(self._chunk), targets.split(self._chunk)
        heat: Sequence[float | torch.Tensor] = [temperature] * len(states)
        if isinstance(temperature, torch.Tensor):
            heat = temperature.split(self._chunk)
        parts = zip(states, tokens, heat, strict=True)
        # Checkpointed, so that the backward pass holds the logits of one chunk at a time too.
        return torch.cat([checkpoint(of_chunk, *part, use_reentrant=False) for part in parts])

    def _of_chunk(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor
    ) -> torch.Tensor:
        logits = self._logits(hidden, temperature)
        # One kernel a pass in place of a maximum, a sum of exponentials and a gather.
        return -torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    def _with_entropy(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor
    ) -> torch.Tensor:
        """Log-probabilities and entropies, [P, 2]."""
        log_probs = self._logits(hidden, temperature).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return torch.stack([log_probs.gather(1, targets[:, None])[:, 0], entropy], 1)

    def _logits(self, hidden: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
        logits = self._head(hidden)
        if isinstance(temperature, torch.Tensor) or temperature != 1:
            logits = logits / temperature
        return logits


def _temperature(part: MicroBatch, picked: torch.Tensor) -> float | torch.Tensor:
    """The temperature of all picked places, or one for each, [P, 1]."""
    temperature: float | torch.Tensor = part.batch.metadata.get("temperature", 1.0)
    if isinstance(temperature, torch.Tensor) and bool((temperature == 1).all()):
        return 1.0
    if isinstance(temperature, torch.Tensor):
        rows = temperature.to(picked.device)[:, None]
        return rows.expand(picked.shape)[picked][:, None]
    return temperature


def _spread(numbers: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
    """Numbers of the picked places at the tokens that they are about, 0.0 elsewhere: [B, T]."""
    shifted = torch.zeros(picked.shape, dtype=torch.float32, device=numbers.device)
    return torch.nn.functional.pad(shifted.masked_scatter(picked, numbers), (1, 0))


def _needed(real: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
    """The real tokens of each row up to the last picked place, [B, T]."""
    columns = torch.arange(picked.shape[1], device=picked.device)
    last = torch.where(picked, columns, -1).amax(1)
    return real & (columns <= last[:, None])


def _temperature(part: MicroBatch, picked: torch.Tensor) -> float | torch.Tensor:
    """What logits are divided by: a number, or one for each picked place, [P, 1]."""
    temperature: float | torch.Tensor = part.batch.metadata.get("temperature", 1.0)
    if not isinstance(temperature, torch.Tensor):
        return temperature
    if bool((temperature == 1).all()):
        return 1.0
    return temperature.to(picked.device)[:, None].expand(picked.shape)[picked][:, None]
