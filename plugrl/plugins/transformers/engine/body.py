"""What computes the hidden states of rows: the contract of the engine's bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

#: How far the hidden states of two ways to compute a trial may be apart, as a share of their norm.
#: Half precision rounds in every layer, which later ones amplify: on an H200, 28 layers of width
#: 1,024 gave 0.01 between kernels that are both right, of width 2,048 gave 0.03.
_APART = {torch.float32: 1e-4}
_APART_IN_HALF = 0.1


def agree(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether hidden states are the same up to rounding.

    Args:
        got, expected: of the same trial.
        dtype: of the model that computed them.
    """
    expected = expected.float()
    apart = (got.float() - expected).norm() / expected.norm()
    return float(apart) < _APART.get(dtype, _APART_IN_HALF)


@dataclass(slots=True)
class Prefill:
    """Prompts that were computed.

    Attributes:
        prompts: their tokens.
        hidden: [N, H], the last hidden states of all tokens, those of a prompt side by side.
        starts: where each prompt begins in ``hidden``.
    """

    prompts: Sequence[Sequence[int]]
    hidden: torch.Tensor
    starts: Sequence[int]

    def of(self, prompt: int) -> torch.Tensor:
        """The hidden states of one prompt, [T, H]."""
        return self.hidden.narrow(0, self.starts[prompt], len(self.prompts[prompt]))

    def lasts(self, picks: Sequence[int]) -> torch.Tensor:
        """The hidden state of the last token of each picked prompt, [len(picks), H]."""
        ends = [self.starts[pick] + len(self.prompts[pick]) - 1 for pick in picks]
        return self.hidden.index_select(0, torch.tensor(ends, device=self.hidden.device))


class Cache(Protocol):
    """What a body keeps of the rows of a batch between steps."""

    capacity: int

    def reserve(self, rows: int, capacity: int, kept: int) -> None:
        """Make room for so many rows of so many tokens; the first ``kept`` rows stay."""

    def most_rows(self, capacity: int) -> int:
        """How many rows of so many tokens there is memory for."""

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row ``order[i]`` is."""

    def release(self) -> None:
        """Give the memory back."""


class Body(Protocol):
    """The layers of a model over a cache of its own kind.

    ``joins``: whether rows may join while others are being decoded.
    """

    joins: bool

    def new_cache(self) -> Any:
        """A cache for the rows of a batch."""

    def arrange(self, cache: Any, positions: Sequence[int]) -> None:
        """Prepare for steps of rows that have so many tokens."""

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        cache: Any,
        picks: Sequence[int],
        places: Sequence[int],
    ) -> Prefill:
        """Compute prompts, and give the states of prompt ``picks[i]`` to row ``places[i]``."""

    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, width: int, cache: Any
    ) -> torch.Tensor:
        """Last hidden states, [B, H], after one more token of each of the first B rows.

        Args:
            tokens: [B].
            positions: [B], tokens that the rows have before.
            width: tokens of the longest row after it; at least so many are seen.
            cache: of this body, arranged for these rows.
        """

    def refresh(self) -> None:
        """To be called when the model has got other weights."""
