"""RMS norms without gradients in few operations."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.linalg import vector_norm
from torch.nn.functional import rms_norm


class States(NamedTuple):
    """States [N, H] as a view of [N, H + 1] with the column that norms want."""

    whole: torch.Tensor
    own: torch.Tensor


class Norm:
    """An RMS norm in two operations, where the one of the CPU takes seven.

    With the square root of H * epsilon in one more column, the norm of a row is what the states
    are to be divided by, but for the square root of H.
    """

    def __init__(self, norm: Any) -> None:
        self._weight, self._eps = norm.weight.detach(), float(norm.variance_epsilon)
        self._exact = exact(self._weight.dtype)
        #: The weight as it is after :meth:`bare`, [H].
        self.scaled = torch.empty_like(self._weight, dtype=self._exact, requires_grad=False)

    def refresh(self) -> None:
        """Take over other weights."""
        torch.mul(self._weight, self._weight.shape[0] ** 0.5, out=self.scaled)

    def states(self, rows: torch.Tensor) -> States:
        """A copy of ``rows``, [N, H], with the column."""
        count, size = rows.shape
        whole = rows.new_full((count, size + 1), (size * self._eps) ** 0.5)
        own = whole[:, :size]
        own.copy_(rows)
        return States(whole, own)

    def __call__(self, states: States) -> torch.Tensor:
        """Normed states, [N, H]."""
        own = states.own
        if own.is_cuda:
            return rms_norm(own, own.shape[-1:], self._weight, self._eps)
        norm = vector_norm(states.whole, dim=-1, keepdim=True, dtype=self._exact)
        return (own / norm).mul_(self.scaled).to(own.dtype)

    def bare(self, states: States) -> torch.Tensor:
        """Normed states before the multiplication by :attr:`scaled`, [N, H], in full precision."""
        return states.own / vector_norm(states.whole, dim=-1, keepdim=True)


def exact(dtype: torch.dtype) -> torch.dtype:
    """The precision of norms and angles of a model of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32
