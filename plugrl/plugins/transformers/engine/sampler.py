"""Sampling of the next token of each row, with the row's own parameters and random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from plugrl.core.text.inference.sampling import SamplingParams, stream_seeds, uniforms
from plugrl.plugins.transformers.engine.logits import LogitsProcessor

#: Steps whose random numbers are made at once.
_AHEAD = 32
#: Where the most probable of the tokens that can be drawn has less, it is computed without others.
_FAINT = 1e-30


class Sampler:
    """The sampling parameters of a batch as tensors; rebuilt when its rows change.

    What a row gets depends on its own logits, parameters and stream alone.

    Args:
        params: the parameters of each row.
        streams: the stream of each row.
        counts: the tokens that each row has so far.
        device: where the logits are.
        processor: changes the logits first; None: nothing does.

    Attributes:
        top: the most probable tokens of the last draw and their log-probabilities, [B, K]; None:
            no row asks for them.
    """

    def __init__(
        self,
        params: Sequence[SamplingParams],
        streams: Sequence[tuple[int, ...]],
        counts: Sequence[int],
        device: str | torch.device,
        processor: LogitsProcessor | None = None,
    ) -> None:
        self._device = device
        self._processor = processor
        self._most = max((p.top_logprobs for p in params), default=0)
        self.top: tuple[torch.Tensor, torch.Tensor] | None = None
        self._seeds = stream_seeds(streams)
        self._counts = np.asarray(counts, dtype=np.int64)
        self._step = 0
        self._draws: torch.Tensor | None = None
        greedy = [p.temperature == 0 for p in params]
        self._all_greedy = all(greedy)
        self._greedy = self._tensor(greedy)[:, None] if any(greedy) else None
        heat = [p.temperature or 1.0 for p in params]
        self._heat = self._tensor(heat)[:, None] if set(heat) != {1.0} else None
        self._cut = _Cut(params, device) if any(map(_cuts, params)) else None
        self._blocked = [
            (p.min_new_tokens - count, row, token)
            for row, (p, count) in enumerate(zip(params, counts, strict=True))
            if count < p.min_new_tokens
            for token in p.stop_token_ids
        ]
        self._blocks_until: float = 0
        self._pairs: tuple[torch.Tensor, ...] | None = None
        self._hidden: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self._never = torch.tensor(-torch.inf, device=device)
        self._nothing = torch.tensor(0.0, device=device)

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token of each row and its log-probability at the row's temperature.

        Args:
            logits: [B, V], float32.

        Returns:
            Tokens [B], and log-probabilities [B] before any token was taken away; penalties and
            grammars change what they are of.
        """
        if self._processor is not None:
            logits = self._processor.apply(logits)
        scaled = logits if self._heat is None else logits / self._heat
        blocked = self._blocked_tokens(logits.shape[-1])
        probs = scaled.softmax(-1)
        faint = False
        if blocked is not None:
            probs.index_put_(blocked, self._nothing)
            # What is left may underflow in float32. Reading it makes the host wait for a GPU,
            # so there it is always recomputed.
            faint = probs.is_cuda or float(probs.amax(-1).min()) < _FAINT
            if faint:
                probs = scaled.index_put(blocked, self._never).softmax(-1)
        if self._greedy is None:
            chosen = self._sample(probs)
        else:
            chosen = probs.argmax(-1, keepdim=True)
            if not self._all_greedy:
                chosen = torch.where(self._greedy, chosen, self._sample(probs))
        self._step += 1
        if self._processor is not None:
            self._processor.add(chosen)
        if self._most:
            most = min(self._most, scaled.shape[-1])
            values, tokens = scaled.log_softmax(-1).topk(most, -1)
            self.top = tokens, values
        # What is drawn of all tokens is never so improbable that its mass is 0.
        logprobs = probs.gather(-1, chosen).log_()
        if faint:
            logprobs = self._with_blocked(scaled, chosen, logprobs)
        return chosen[:, 0], logprobs[:, 0]

    def _with_blocked(
        self, scaled: torch.Tensor, chosen: torch.Tensor, logprobs: torch.Tensor
    ) -> torch.Tensor:
        """``logprobs`` ([B, 1]) of ``chosen`` once the tokens that were taken away count too."""
        assert self._hidden is not None
        tokens, absent = self._hidden
        logits = scaled.gather(-1, chosen)
        # The sum over the vocabulary is known from the softmax; only these are missing in it.
        missing = scaled.gather(-1, tokens)
        if absent is not None:
            missing.masked_fill_(absent, -torch.inf)
        total = logits - logprobs
        for column in missing.split(1, -1):
            total = total.logaddexp(column)
        return logits - total

    def _sample(self, probs: torch.Tensor) -> torch.Tensor:
        """Tokens [B, 1] by inverse transform of one uniform number a row."""
        if self._cut is not None:
            probs = self._cut.apply(probs)
        # Sums in float64, so that every number below 1 falls to a token that can be drawn.
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        level = self._numbers() * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, level, right=True)
        chosen = chosen.clamp_max_(probs.shape[-1] - 1)
        if probs.is_cuda:
            # A parallel sum may fall a little, and the search then meets a token of no mass.
            lost = probs.gather(-1, chosen) == 0
            chosen = torch.where(lost, probs.argmax(-1, keepdim=True), chosen)
        return chosen

    def _numbers(self) -> torch.Tensor:
        """Uniform numbers of this step, [B, 1]."""
        ahead = self._step % _AHEAD
        if ahead == 0 or self._draws is None:
            positions = self._counts + self._step + np.arange(_AHEAD)[:, None]
            numbers = uniforms(self._seeds, positions)[..., None]
            self._draws = torch.from_numpy(numbers).to(self._device)
        return self._draws[ahead]

    def _blocked_tokens(self, vocabulary: int) -> tuple[torch.Tensor, ...] | None:
        """Rows and their stop tokens that cannot be drawn yet."""
        if self._step >= self._blocks_until:
            self._blocked = [entry for entry in self._blocked if entry[0] > self._step]
            self._blocks_until = min((until for until, _, _ in self._blocked), default=math.inf)
            pairs = {(row, token) for _, row, token in self._blocked if token < vocabulary}
            self._pairs = self._tensor(sorted(pairs)).unbind(-1) if pairs else None
            self._hidden = self._by_row(pairs) if pairs else None
        return self._pairs

    def _by_row(self, pairs: set[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Those tokens as [B, K], and which entries are none, if any are."""
        rows: list[list[int]] = [[] for _ in self._counts]
        for row, token in sorted(pairs):
            rows[row].append(token)
        most = max(map(len, rows))
        absent = [[False] * len(row) + [True] * (most - len(row)) for row in rows]
        tokens = self._tensor([row + [0] * (most - len(row)) for row in rows])
        return tokens, self._tensor(absent) if any(map(any, absent)) else None

    def _tensor(self, values: Sequence[object]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)


class _Cut:
    """Min-p, then top-k, then top-p of what is left, for the rows that ask for it."""

    def __init__(self, params: Sequence[SamplingParams], device: str | torch.device) -> None:
        rows = [row for row, p in enumerate(params) if _cuts(p)]
        self._rows = torch.tensor(rows, device=device)
        self._all = len(rows) == len(params)
        asked = [params[row] for row in rows]
        # With top-k everywhere, the largest k is all that must be sorted.
        self._most = max(p.top_k for p in asked) if all(p.top_k for p in asked) else 0
        most = 2**31
        self._k = torch.tensor([[p.top_k or most] for p in asked], device=device)
        self._p = torch.tensor([[p.top_p] for p in asked], dtype=torch.float64, device=device)
        least = [[p.min_p] for p in asked]
        self._least = torch.tensor(least, device=device) if any(p.min_p for p in asked) else None

    def apply(self, probs: torch.Tensor) -> torch.Tensor:
        """``probs`` with the tails of those rows at 0; masses are not scaled up again."""
        own = probs if self._all else probs[self._rows]
        vocabulary = own.shape[-1]
        if self._least is not None:
            own = torch.where(own >= self._least * own.amax(-1, keepdim=True), own, 0.0)
        # Stable, so that of equal tokens the same ones are kept on every device.
        ordered, order = own.sort(dim=-1, descending=True, stable=True)
        if 0 < self._most < vocabulary:
            ordered, order = ordered[:, : self._most], order[:, : self._most]
        ranks = torch.arange(ordered.shape[-1], device=own.device)
        ordered = torch.where(ranks < self._k, ordered, 0.0)
        before = ordered.cumsum(-1, dtype=torch.float64)
        mass = before[:, -1:].clone()
        kept = torch.where(before - ordered < self._p * mass, ordered, 0.0)
        cut = torch.zeros_like(own).scatter(-1, order, kept)
        return cut if self._all else probs.index_copy(0, self._rows, cut)


def _cuts(params: SamplingParams) -> bool:
    return params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
