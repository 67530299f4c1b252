"""What changes logits before a token is drawn: penalties of tokens that were said, and grammars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from plugrl.plugins.transformers.engine.request_rows import Row


class LogitsProcessor:
    """Penalties and masks of the rows of a batch that ask for them.

    Args:
        rows: of the batch; None: one that has ended.
        device: where the logits are.
    """

    def __init__(self, rows: Sequence[Row | None], device: str | torch.device) -> None:
        self._device = device
        self._penalized = [
            (place, row)
            for place, row in enumerate(rows)
            if row is not None and row.request.sampling.penalized
        ]
        self._constrained = [
            (place, row)
            for place, row in enumerate(rows)
            if row is not None and row.matcher is not None
        ]
        self._counts: torch.Tensor | None = None

    @property
    def needed(self) -> bool:
        """Whether any row asks for it."""
        return bool(self._penalized or self._constrained)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] with the penalties, and -inf where a grammar allows no token."""
        if self._penalized:
            logits = self._penalize(logits)
        if self._constrained:
            places = torch.tensor([place for place, _ in self._constrained], device=self._device)
            allowed = self._allowed(logits.shape[-1])
            own = logits.index_select(0, places).masked_fill_(~allowed, -torch.inf)
            logits = logits.index_copy(0, places, own)
        return logits

    def add(self, tokens: torch.Tensor) -> None:
        """Count the tokens [B, 1] that were drawn."""
        if self._counts is not None:
            drawn = tokens.index_select(0, self._places)
            self._counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float32))

    def _penalize(self, logits: torch.Tensor) -> torch.Tensor:
        if self._counts is None:
            self._prepare(logits.shape[-1])
        assert self._counts is not None
        own, said = logits.index_select(0, self._places), self._counts > 0
        scaled = torch.where(own > 0, own / self._repetition, own * self._repetition)
        own = torch.where(said | self._prompted, scaled, own)
        own = own - self._frequency * self._counts - self._presence * said
        return logits.index_copy(0, self._places, own)

    def _prepare(self, vocabulary: int) -> None:
        """Count what the answers hold so far, and note what the prompts hold."""
        self._places = torch.tensor([place for place, _ in self._penalized], device=self._device)
        counts = np.zeros((len(self._penalized), vocabulary), dtype=np.float32)
        prompted = np.zeros(counts.shape, dtype=bool)
        for number, (_, row) in enumerate(self._penalized):
            np.add.at(counts[number], row.tokens, 1.0)
            prompted[number, list(row.request.prompt_tokens)] = True
        self._counts = torch.from_numpy(counts).to(self._device)
        self._prompted = torch.from_numpy(prompted).to(self._device)
        asked = [row.request.sampling for _, row in self._penalized]
        self._repetition = self._column([each.repetition_penalty for each in asked])
        self._frequency = self._column([each.frequency_penalty for each in asked])
        self._presence = self._column([each.presence_penalty for each in asked])

    def _allowed(self, vocabulary: int) -> torch.Tensor:
        """The tokens that may come next, [R, V]."""
        allowed = np.zeros((len(self._constrained), vocabulary), dtype=bool)
        for number, (_, row) in enumerate(self._constrained):
            assert row.matcher is not None
            bits = np.unpackbits(row.matcher.bits, bitorder="little")[:vocabulary]
            allowed[number, : len(bits)] = bits
            if not bits.any():
                # The row has ended; what is drawn for it is dropped.
                allowed[number] = True
        return torch.from_numpy(allowed).to(self._device)

    def _column(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)[:, None]
