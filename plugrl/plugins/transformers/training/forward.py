"""Log-probabilities of given tokens under a causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from plugrl.plugins.transformers.engine.head import body_and_head
from plugrl.plugins.transformers.training.head import ChunkedHead
from plugrl.plugins.transformers.training.packing import Packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.plugins.transformers.memory_pool import SharedPool
    from plugrl.plugins.transformers.training.micro_batches import MicroBatch


class Forward:
    """Computes log-probabilities, and nothing that no wanted one depends on.

    What follows a row's last trained token is left out, prompts that rows share are computed once
    where they are packed, and the vocabulary projection is computed for trained tokens alone.

    Args:
        model: a causal language model.
        packs: whether the model takes packed rows; else rows are padded.
        by_lengths: whether attention of packed rows is the kernel for sequences of many lengths.
        head_chunk_tokens: tokens whose logits are there at the same time, forward and backward.
        memory: for activations; None: they lie anywhere.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        packs: bool,
        head_chunk_tokens: int,
        by_lengths: bool = False,
        memory: SharedPool | None = None,
    ) -> None:
        self._memory: Callable[[], AbstractContextManager[None]]
        self._memory = nullcontext if memory is None else memory.for_training
        self._body, logits = body_and_head(model)
        self.head = ChunkedHead(logits, head_chunk_tokens)
        parameters = inspect.signature(model.base_model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self.packs = packs
        self.by_lengths = by_lengths
        #: Makes a number of a hidden state, where the service has a value head.
        self.value_head: torch.nn.Linear | None = None
        self._device = model.device

    def hidden_width(self) -> int:
        """Numbers of a hidden state."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self._device)
        with torch.no_grad():
            states = self._body(input_ids=token, use_cache=False).last_hidden_state
        return int(states.shape[-1])

    def log_probs(self, part: MicroBatch) -> torch.Tensor:
        """Log-probability of each token given the ones before it, [B, T], float32.

        Where ``loss_mask`` is 0, it is 0.0. Logits are divided by ``metadata["temperature"]``, one
        for all or one a row, as the sampler does.
        """
        asked = _PredictedTokens.of(part)
        if asked is None:
            return _empty(part)
        with self._memory():
            hidden = self._hidden(part, asked)
            return _scatter(self.head(hidden, asked.targets, asked.temperature), asked.picked)

    def with_needs(
        self, part: MicroBatch, needs: Sequence[str]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """What :meth:`log_probs` gives, and between it what ``needs`` names, [B, T] each.

        "entropy" is that of the distribution that a token was drawn from, "values" the value of the
        state before it.
        """
        asked = _PredictedTokens.of(part)
        if asked is None:
            return _empty(part), {name: _empty(part) for name in needs}
        with self._memory():
            hidden = self._hidden(part, asked)
            extras = {}
            if "entropy" in needs:
                both = self.head(hidden, asked.targets, asked.temperature, entropy=True)
                chosen, extras["entropy"] = both.unbind(1)
            else:
                chosen = self.head(hidden, asked.targets, asked.temperature)
            if "values" in needs:
                assert self.value_head is not None
                # In float32 where the caller lets the model compute in less.
                with torch.autocast(hidden.device.type, enabled=False):
                    extras["values"] = self.value_head(hidden.float())[:, 0]
            extras = {name: _scatter(numbers, asked.picked) for name, numbers in extras.items()}
            return _scatter(chosen, asked.picked), extras

    def _packing(self, part: MicroBatch, asked: _PredictedTokens) -> Packing | None:
        if not self.packs:
            return None
        values = part.batch.values
        ids, positions = values["input_ids"][:, :-1], values["position_ids"][:, :-1]
        return Packing.of(
            ids,
            positions,
            asked.needed,
            asked.picked,
            part.leaders,
            by_lengths=self.by_lengths,
        )

    def _hidden(self, part: MicroBatch, asked: _PredictedTokens) -> torch.Tensor:
        """Last hidden states of the picked places, [P, H]: token t is predicted from t - 1."""
        states: torch.Tensor
        packing = self._packing(part, asked)
        if packing is not None:
            states = self._body(**packing.inputs(), use_cache=False).last_hidden_state
            return states.flatten(0, 1)[packing.places]
        values = part.batch.values
        more = {"position_ids": values["position_ids"][:, :-1]} if self._takes_positions else {}
        states = self._body(
            input_ids=values["input_ids"][:, :-1],
            attention_mask=asked.needed.long(),
            use_cache=False,
            **more,
        ).last_hidden_state
        return states[asked.picked]


@dataclass(frozen=True)
class _PredictedTokens:
    """Which places of [B, T - 1] predict tokens, and what is asked of them.

    ``needed`` are the real tokens of each row up to its last picked place; ``targets`` ([P]) the
    tokens; ``temperature`` a number, or one for each picked place, [P, 1].
    """

    picked: torch.Tensor
    needed: torch.Tensor
    targets: torch.Tensor
    temperature: float | torch.Tensor

    @classmethod
    def of(cls, part: MicroBatch) -> _PredictedTokens | None:
        """None when no token is trained."""
        values = part.batch.values
        real = values["attention_mask"][:, :-1] != 0
        picked = (values["loss_mask"][:, 1:] != 0) & real
        if not bool(picked.any()):
            return None
        columns = torch.arange(picked.shape[1], device=picked.device)
        last = torch.where(picked, columns, -1).amax(1)
        needed = real & (columns <= last[:, None])
        targets = values["input_ids"][:, 1:][picked]
        return cls(picked, needed, targets, _temperature(part, picked))


def _temperature(part: MicroBatch, picked: torch.Tensor) -> float | torch.Tensor:
    temperature: float | torch.Tensor = part.batch.metadata.get("temperature", 1.0)
    if not isinstance(temperature, torch.Tensor):
        return temperature
    if bool((temperature == 1).all()):
        return 1.0
    return temperature.to(picked.device)[:, None].expand(picked.shape)[picked][:, None]


def _empty(part: MicroBatch) -> torch.Tensor:
    ids = part.batch.values["input_ids"]
    return torch.zeros(ids.shape, device=ids.device)


def _scatter(numbers: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
    """Numbers of the picked places at the tokens that they are about, 0.0 elsewhere: [B, T]."""
    shifted = torch.zeros(picked.shape, dtype=torch.float32, device=numbers.device)
    return torch.nn.functional.pad(shifted.masked_scatter(picked, numbers), (1, 0))
