"""Sampling of the next token of each row, with the row's own parameters and random numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from plugrl.core.text.inference.sampling import SamplingParams, stream_seeds
from plugrl.plugins.transformers.engine.logits import LogitsProcessor

#: Steps whose random numbers are made at once on the CPU.
_AHEAD = 32
#: Tokens whose masses are summed one by one, in a vocabulary of more.
_BLOCK = 1024
#: Blocks that divide a vocabulary have at least so many; else it is filled up to whole ones.
_LEAST_BLOCK = 64
#: Vocabularies up to this size are searched at once.
_FEW = 4 * _BLOCK
#: Bits that numbers between 0 and 1 in float32 take, as whole numbers.
_MASS_BITS = 30


class Sampler:
    """The sampling parameters of a batch as tensors.

    What a row gets depends on its own logits, parameters and stream alone.

    Args:
        params: the parameters of each row.
        streams: the stream of each row.
        counts: the tokens that each row has so far.
        device: where the logits are.
        processor: changes the logits first; None: nothing does.

    Attributes:
        tensors: the parameters that any row needs, by name; those of a step that is captured are
            overwritten in place.
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
        self._device = torch.device(device)
        self._processor = processor
        self.most_top = max((p.top_logprobs for p in params), default=0)
        self.top: tuple[torch.Tensor, torch.Tensor] | None = None
        # Two's complement: torch has no unsigned arithmetic, and it wraps as that does.
        self.tensors: dict[str, torch.Tensor] = {
            "seeds": torch.from_numpy(stream_seeds(streams).view(np.int64)).to(device),
            "counts": self._tensor(counts, torch.int64),
        }
        self._all_greedy = all(p.temperature == 0 for p in params)
        if any(p.temperature == 0 for p in params):
            self.tensors["greedy"] = self._tensor([p.temperature == 0 for p in params])[:, None]
        heat = [p.temperature or 1.0 for p in params]
        if set(heat) != {1.0}:
            self.tensors["heat"] = self._tensor(heat)[:, None]
        if any(map(_cuts, params)):
            self._note_cuts(params)
        waits = [
            p.min_new_tokens - count if p.stop_token_ids else 0
            for p, count in zip(params, counts, strict=True)
        ]
        self._blocks_until = max(waits, default=0)
        if self._blocks_until > 0:
            most = max(len(p.stop_token_ids) for p in params)
            stops = [[*p.stop_token_ids, *[-1] * (most - len(p.stop_token_ids))] for p in params]
            self.tensors["stops"] = self._tensor(stops, torch.int64)
            least = [p.min_new_tokens for p in params]
            self.tensors["least"] = self._tensor(least, torch.int64)[:, None]
        self._step = 0
        self._ahead: torch.Tensor | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What :meth:`draw` does depends on this: captured steps of one kind are alike."""
        shapes = sorted((name, tuple(t.shape[1:])) for name, t in self.tensors.items())
        return self._all_greedy, self.most_top, *shapes

    @property
    def processed(self) -> bool:
        """Whether logits are changed by what the host knows."""
        return self._processor is not None

    def copy(self) -> Sampler:
        """A sampler with the same parameters in tensors of its own."""
        other = copy.copy(self)
        other.tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return other

    def take_over(self, other: Sampler) -> None:
        """Take the parameters of another sampler of the same kind, in place."""
        for name, tensor in self.tensors.items():
            tensor.copy_(other.tensors[name])

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
        given = self.tensors
        scaled = logits / given["heat"] if "heat" in given else logits
        open_to_draw = self._without_blocked(scaled)
        probs = open_to_draw.softmax(-1)
        if self._all_greedy:
            chosen = open_to_draw.argmax(-1, keepdim=True)
        else:
            chosen = self._sample(probs)
            if "greedy" in given:
                best = open_to_draw.argmax(-1, keepdim=True)
                chosen = torch.where(given["greedy"], best, chosen)
        self._step += 1
        if self._device.type != "cpu":
            given["counts"].add_(1)
        if self._processor is not None:
            self._processor.add(chosen)
        if self.most_top:
            most = min(self.most_top, scaled.shape[-1])
            values, tokens = scaled.log_softmax(-1).topk(most, -1)
            self.top = tokens, values
        if open_to_draw is scaled:
            # What is drawn of all tokens is never so improbable that its mass is 0.
            logprobs = probs.gather(-1, chosen).log_()
        else:
            logprobs = scaled.gather(-1, chosen) - scaled.logsumexp(-1, keepdim=True)
        return chosen[:, 0], logprobs[:, 0]

    def _without_blocked(self, scaled: torch.Tensor) -> torch.Tensor:
        """``scaled`` with -inf for stop tokens that cannot be drawn yet."""
        on_host = self._device.type == "cpu"
        if "stops" not in self.tensors or (on_host and self._step >= self._blocks_until):
            return scaled
        stops, counts = self.tensors["stops"], self.tensors["counts"][:, None]
        counts = counts + self._step if on_host else counts
        known = (stops >= 0) & (stops < scaled.shape[-1])
        blocked = known & (counts < self.tensors["least"])
        if torch.compiler.is_compiling():
            # Part of the kernel that reads the logits: they are not written once more.
            places = torch.arange(scaled.shape[-1], device=scaled.device)
            for each in range(stops.shape[1]):
                here = blocked[:, each, None] & (places == stops[:, each, None])
                scaled = scaled.masked_fill(here, -torch.inf)
            return scaled
        never = torch.full_like(stops, -1, dtype=scaled.dtype).mul_(torch.inf)
        values = torch.where(blocked, never, -never)
        where = torch.where(known, stops, 0)
        # The lowest, since several entries may name one token.
        return scaled.scatter_reduce(-1, where, values, "amin", include_self=True)

    def _sample(self, probs: torch.Tensor) -> torch.Tensor:
        """Tokens [B, 1] by inverse transform of one uniform number a row."""
        if "top_p" in self.tensors:
            probs = self._cut(probs)
        numbers = self._numbers()
        if probs.shape[-1] <= _FEW:
            return _search(probs, numbers)
        return _search_in_blocks(probs, numbers)

    def _numbers(self) -> torch.Tensor:
        """Uniform numbers of this step, [B, 1]."""
        seeds, counts = self.tensors["seeds"], self.tensors["counts"]
        if self._device.type != "cpu":
            return uniforms(seeds, counts)[:, None]
        ahead = self._step % _AHEAD
        if ahead == 0 or self._ahead is None:
            steps = torch.arange(self._step, self._step + _AHEAD)
            self._ahead = uniforms(seeds, counts + steps[:, None])[..., None]
        return self._ahead[ahead]

    def _note_cuts(self, params: Sequence[SamplingParams]) -> None:
        """Note min-p, top-k and top-p, for the rows that ask for them."""
        self._cutting = [row for row, p in enumerate(params) if _cuts(p)]
        self._cuts_all = len(self._cutting) == len(params)
        asked = [params[row] for row in self._cutting]
        # With top-k everywhere, the largest k is all that must be sorted.
        self._most_k = max(p.top_k for p in asked) if all(p.top_k for p in asked) else 0
        most = 2**31
        heated = [p if _cuts(p) else SamplingParams() for p in params]
        tops = [[p.top_p] for p in heated]
        self.tensors["top_p"] = self._tensor(tops, torch.float64)
        if any(p.top_k for p in heated):
            self.tensors["top_k"] = self._tensor([[p.top_k or most] for p in heated], torch.int64)
        if any(p.min_p for p in heated):
            self.tensors["min_p"] = self._tensor([[p.min_p] for p in heated], torch.float32)

    def _cut(self, probs: torch.Tensor) -> torch.Tensor:
        """``probs`` with the tails at 0: min-p, then top-k, then top-p of what is left."""
        given: Mapping[str, torch.Tensor] = self.tensors
        if self._device.type != "cpu":
            return cut_by_bounds(probs, given["top_p"], given.get("top_k"), given.get("min_p"))
        rows = None if self._cuts_all else torch.tensor(self._cutting)
        if rows is None:
            return cut_by_order(probs, given, self._most_k)
        own = {name: given[name][rows] for name in ("top_p", "top_k", "min_p") if name in given}
        return probs.index_copy(0, rows, cut_by_order(probs[rows], own, self._most_k))

    def _tensor(self, values: Sequence[object], dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.tensor(values, device=self._device, dtype=dtype)


def _cuts(params: SamplingParams) -> bool:
    return params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


def cut_by_order(
    probs: torch.Tensor, given: Mapping[str, torch.Tensor], most: int = 0
) -> torch.Tensor:
    """``probs`` ([B, V]) with the tails at 0, by sorting; masses are not scaled up again.

    Args:
        probs: of the rows.
        given: "top_p" and perhaps "top_k" and "min_p", [B, 1] each.
        most: no row keeps more tokens; 0: some may.
    """
    if "min_p" in given:
        probs = torch.where(probs >= given["min_p"] * probs.amax(-1, keepdim=True), probs, 0.0)
    # Stable, so that of equal tokens the first are kept.
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    if 0 < most < probs.shape[-1]:
        ordered, order = ordered[:, :most], order[:, :most]
    if "top_k" in given:
        ranks = torch.arange(ordered.shape[-1], device=probs.device)
        ordered = torch.where(ranks < given["top_k"], ordered, 0.0)
    before = ordered.cumsum(-1, dtype=torch.float64)
    mass = before[:, -1:].clone()
    kept = torch.where(before - ordered < given["top_p"] * mass, ordered, 0.0)
    return torch.zeros_like(probs).scatter(-1, order, kept)


def cut_by_bounds(
    probs: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    """:func:`cut_by_order` without sorting, for large vocabularies on an accelerator.

    The least mass that is kept is found exactly: positive numbers in float32 are ordered as their
    bits are. Tokens of exactly that mass are all kept, as ``transformers`` does.
    """
    if min_p is not None:
        probs = torch.where(probs >= min_p * probs.amax(-1, keepdim=True), probs, 0.0)
    bits = probs.view(torch.int32)
    if top_k is not None:
        least = _largest_bound(bits, lambda enough: enough.sum(-1, keepdim=True) >= top_k)
        probs = torch.where(bits >= least, probs, 0.0)
        bits = probs.view(torch.int32)
    mass = top_p * probs.sum(-1, keepdim=True, dtype=torch.float64)

    def holds(enough: torch.Tensor) -> torch.Tensor:
        kept = torch.where(enough, probs, 0.0)
        return kept.sum(-1, keepdim=True, dtype=torch.float64) >= mass

    return torch.where(bits >= _largest_bound(bits, holds), probs, 0.0)


def _largest_bound(
    bits: torch.Tensor, holds: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The largest bound, [B, 1], at which ``holds`` of the tokens that reach it, [B, V].

    It is found digit by digit. Compiled, all values of a digit are tried in one pass over the
    tokens; else each takes its own, so that digits are bits.
    """
    digit = 3 if torch.compiler.is_compiling() else 1
    bound = torch.zeros_like(bits[:, :1])
    for shift in reversed(range(0, _MASS_BITS, digit)):
        tried = [holds(bits >= bound + (value << shift)) for value in range(1, 2**digit)]
        bound = bound + (torch.cat(tried, -1).sum(-1, keepdim=True, dtype=bits.dtype) << shift)
    return bound


def _search(masses: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The place of each row, [B, 1], at which the sum of ``masses`` passes that part of it."""
    # Sums in float64, so that every number below 1 falls to a token that can be drawn.
    cumulative = masses.cumsum(-1, dtype=torch.float64)
    return _drawable(masses, cumulative, numbers * cumulative[:, -1:])


def _search_in_blocks(probs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """:func:`_search` over sums of blocks first: most tokens are read once."""
    width = math.gcd(probs.shape[-1], _BLOCK)
    if width < _LEAST_BLOCK:
        width = _BLOCK
        probs = torch.nn.functional.pad(probs, (0, -probs.shape[-1] % width))
    blocks = probs.unflatten(-1, (-1, width))
    sums = blocks.sum(-1, dtype=torch.float64)
    cumulative = sums.cumsum(-1)
    level = numbers * cumulative[:, -1:]
    block = _drawable(sums, cumulative, level)
    level = level - (cumulative.gather(-1, block) - sums.gather(-1, block))
    own = blocks.gather(1, block[..., None].expand(-1, -1, width))[:, 0]
    within = _drawable(own, own.cumsum(-1, dtype=torch.float64), level, within_block=True)
    return block * width + within


def _drawable(
    masses: torch.Tensor,
    cumulative: torch.Tensor,
    level: torch.Tensor,
    *,
    within_block: bool = False,
) -> torch.Tensor:
    """Where the sums pass ``level``; rounding never leads to what has no mass."""
    chosen = torch.searchsorted(cumulative, level, right=True)
    chosen = chosen.clamp_max(masses.shape[-1] - 1)
    if within_block or masses.device.type != "cpu":
        lost = masses.gather(-1, chosen) == 0
        chosen = torch.where(lost, masses.argmax(-1, keepdim=True), chosen)
    return chosen


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Numbers in [0, 1) of each stream, as :func:`plugrl.core.text.inference.sampling.uniforms`.

    They are computed where the tensors are, within a captured step too, and are the same bits on
    every device: SplitMix64 of (seed, position). Seeds and positions are int64 and broadcast.
    """
    values = seeds + (positions + 1) * _GOLDEN
    values = (values ^ _shifted(values, 30)) * _MIX_1
    values = (values ^ _shifted(values, 27)) * _MIX_2
    values = values ^ _shifted(values, 31)
    return _shifted(values, 11).to(torch.float64) * 2.0**-53


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that fills with zeros."""
    return (values >> bits) & (2 ** (64 - bits) - 1)
