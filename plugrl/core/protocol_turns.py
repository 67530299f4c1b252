"""The turns of a protocol as a table, and the faults that a table can have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from plugrl.core.errors import PluginError

#: Who speaks in a round, and in which channels.
Turn = Mapping[str, Sequence[str]]


def table_of(
    name: str,
    turns: Sequence[Turn | Sequence[Turn]],
    agents: Sequence[str],
    viewers: Mapping[str, Sequence[str]],
    rounds: int,
) -> np.ndarray:
    """Who speaks where, ``[rounds, alternatives, agents, channels]``, of the protocol ``name``.

    Raises:
        PluginError: a turn names an agent or channel that is not there, lets an agent speak where
            it does not see, or two agents in one channel.
    """
    if not turns:
        raise PluginError(f"{name}: turns() is empty; write who speaks in round 0")
    cycle = [[turn] if isinstance(turn, Mapping) else list(turn) for turn in turns]
    alternatives = math.lcm(*(len(each) for each in cycle))
    table = np.zeros((rounds, alternatives, len(agents), len(viewers)), bool)
    for number in range(rounds):
        each = cycle[number % len(cycle)]
        for k in range(alternatives):
            table[number, k] = _entry(
                f"{name}: round {number}", each[k % len(each)], agents, viewers
            )
    return table


def _entry(
    where: str, turn: Turn, agents: Sequence[str], viewers: Mapping[str, Sequence[str]]
) -> np.ndarray:
    """One turn as a mask ``[agents, channels]``."""
    mask = np.zeros((len(agents), len(viewers)), bool)
    for agent, channels in turn.items():
        for channel in channels:
            if agent not in agents or channel not in viewers:
                raise PluginError(
                    f"{where} names {agent!r} in {channel!r}; name agents of agent_names and "
                    "channels of viewers"
                )
            if agent not in viewers[channel]:
                raise PluginError(
                    f"{where} lets {agent!r} speak in {channel!r}, which it does not see; "
                    "add it to viewers"
                )
            mask[list(agents).index(agent), list(viewers).index(channel)] = True
    if (mask.sum(0) > 1).any():
        crowded = list(viewers)[int(mask.sum(0).argmax())]
        raise PluginError(
            f"{where} lets several agents speak in {crowded!r}; give each a channel of its own"
        )
    return mask


def at_round(table: np.ndarray, round: np.ndarray, seed: np.ndarray) -> np.ndarray:
    """The entries ``[N, ...]`` of a table for rounds and seeds; false beyond the last round."""
    rounds, seeds = np.broadcast_arrays(np.asarray(round), np.asarray(seed))
    found = table[np.clip(rounds, 0, len(table) - 1), seeds % table.shape[1]]
    there = (rounds >= 0) & (rounds < len(table))
    masked: np.ndarray = found & there.reshape(*rounds.shape, *[1] * (table.ndim - 2))
    return masked
