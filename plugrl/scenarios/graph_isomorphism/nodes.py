"""Messages that name nodes of two graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from plugrl.core.tensordict.environment.message_space import SILENCE, MessageSpace, last_said


class NodeMessages(MessageSpace):
    """Message ``g * nodes + n`` names node n of graph g, if it is there.

    Args:
        nodes: of the largest graph.
        answering: the agents that name nodes of the graph opposite to that of the last message.
    """

    def __init__(self, nodes: int, answering: Sequence[str]) -> None:
        super().__init__(2 * nodes)
        self._nodes = nodes
        self._answering = frozenset(answering)

    def allowed(
        self, agent: str, items: Mapping[str, np.ndarray], history: np.ndarray
    ) -> np.ndarray:
        """See the base class."""
        there = items["node_mask"].reshape(len(history), 1, -1).astype(bool)
        if agent not in self._answering:
            return there
        last = last_said(history)[..., None]
        graph = np.arange(self.size) // self._nodes
        mask: np.ndarray = there & ((last == SILENCE) | (graph != last // self._nodes))
        return mask
