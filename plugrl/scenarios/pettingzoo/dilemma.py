"""``IteratedDilemma``: two players who meet again and again, and would gain by betraying once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

_AGENTS = ("first", "second")
#: What a player earns by what it did and what the other did: 0 cooperates, 1 defects.
PAYOFFS = ((-1.0, -3.0), (0.0, -2.0))


class IteratedDilemma(ParallelEnv[str, np.ndarray, int]):
    """The prisoner's dilemma, played for ``rounds`` rounds by ``first`` and ``second``.

    In each round both choose at once, 0 to cooperate or 1 to defect. A player sees a one among
    zeros ``[5]``: the first round, or what it and the other did in the last one, in the order both
    cooperated, the other defected, only itself did, both did. An episode is cut off, so that
    nobody knows a last round.
    """

    metadata: dict[str, Any] = {"name": "iterated_dilemma", "render_modes": []}
    render_mode = None

    def __init__(self, rounds: int = 50) -> None:
        self.rounds = rounds
        self.possible_agents = list(_AGENTS)
        self.agents: list[str] = []
        self._spaces = {agent: Box(0.0, 1.0, (5,), np.float32) for agent in _AGENTS}
        self._actions = {agent: Discrete(2) for agent in _AGENTS}
        self._round = 0

    def observation_space(self, agent: str) -> Box:
        """See the class."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """See the class."""
        return self._actions[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Begin with the first round; nothing is drawn."""
        self.agents, self._round = list(_AGENTS), 0
        return {agent: _seen(0) for agent in _AGENTS}, {agent: {} for agent in _AGENTS}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Play a round."""
        first, second = (int(actions[agent]) for agent in _AGENTS)
        self._round += 1
        cut = self._round >= self.rounds
        if cut:
            self.agents = []
        return (
            {"first": _seen(1 + 2 * first + second), "second": _seen(1 + 2 * second + first)},
            {"first": PAYOFFS[first][second], "second": PAYOFFS[second][first]},
            dict.fromkeys(_AGENTS, False),
            dict.fromkeys(_AGENTS, cut),
            {agent: {} for agent in _AGENTS},
        )


def _seen(place: int) -> np.ndarray:
    seen = np.zeros(5, np.float32)
    seen[place] = 1.0
    return seen
