"""Heads above ``graph_pair``: one that points at nodes, and one for the pair as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from plugrl.core.tensordict.agents.parts import ACTIVATIONS


@dataclass(frozen=True)
class Parts:
    """What is where in the features of ``graph_pair``.

    Attributes:
        nodes: of both graphs together.
        width: what is known of each node.
        channels: those that the agent sees.
        pooled: what is known of the pair, in any order of its graphs.
        context: whose turn it is.
    """

    nodes: int
    width: int
    channels: int
    pooled: int
    context: int

    @property
    def size(self) -> int:
        """All features."""
        return self.nodes * (self.width + self.channels) + self.pooled + self.context

    def known(self, features: torch.Tensor) -> torch.Tensor:
        """What is known of the nodes, ``[N, nodes, width]``."""
        return features[:, : self.nodes * self.width].unflatten(1, (self.nodes, self.width))

    def last(self, features: torch.Tensor) -> torch.Tensor:
        """The node named last in each channel, as ones, ``[N, channels, nodes]``."""
        start = self.nodes * self.width
        shape = (self.channels, self.nodes)
        return features[:, start : start + self.channels * self.nodes].unflatten(1, shape)

    def whole(self, features: torch.Tensor) -> torch.Tensor:
        """What is known of the pair and whose turn it is, ``[N, pooled + context]``."""
        return features[:, self.nodes * (self.width + self.channels) :]


class PooledHead(nn.Module):
    """``[..., features]`` to ``[..., outputs]``, from what is known of the pair as a whole."""

    def __init__(self, parts: Parts, outputs: int, hidden: int, activation: str) -> None:
        super().__init__()
        self._parts = parts
        last = nn.Linear(hidden, outputs)
        with torch.no_grad():
            last.weight *= _SMALL
            last.bias.zero_()
        first = nn.Linear(parts.pooled + parts.context, hidden)
        self.layers = nn.Sequential(first, ACTIVATIONS[activation](), last)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """See the class."""
        flat = features.reshape(-1, features.shape[-1])
        numbers: torch.Tensor = self.layers(self._parts.whole(flat))
        return numbers.reshape(*features.shape[:-1], -1)


#: Factor of the last layer of a head: in the beginning nothing is preferred.
_SMALL = 0.1


class Pointer(nn.Module):
    """``[..., features]`` to a number for each node in each channel, and for each decision.

    A node is preferred by what is known of it, and by how alike it is to the last one named.
    """

    def __init__(self, parts: Parts, outputs: int, hidden: int, activation: str) -> None:
        super().__init__()
        self._parts = parts
        decisions = outputs - parts.channels * parts.nodes
        self.decision = PooledHead(parts, decisions, hidden, activation) if decisions else None
        self.node = nn.Linear(parts.width, hidden)
        self.pair = nn.Linear(parts.pooled + parts.context, hidden, bias=False)
        self.middle = ACTIVATIONS[activation]()
        self.score = nn.Linear(hidden, parts.channels, bias=False)
        self.likeness = nn.Parameter(torch.ones(parts.channels))
        with torch.no_grad():
            self.score.weight *= _SMALL

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """See the class."""
        flat = features.reshape(-1, features.shape[-1])
        known, last = self._parts.known(flat), self._parts.last(flat)
        of_pair = self.pair(self._parts.whole(flat)).unsqueeze(1)
        scores = self.score(self.middle(self.node(known) + of_pair)).transpose(1, 2)
        apart = (known.unsqueeze(1) - (last @ known).unsqueeze(2)).square().mean(-1)
        spoken = last.amax(-1, keepdim=True)
        scores = scores - self.likeness[:, None] * torch.log1p(_SHARPNESS * apart) * spoken
        numbers = [scores.flatten(1)]
        if self.decision is not None:
            numbers.append(self.decision(flat))
        return torch.cat(numbers, -1).reshape(*features.shape[:-1], -1)


#: How much distances between nodes are stretched near 0: equal ones stand out from close ones.
_SHARPNESS = 1000.0
