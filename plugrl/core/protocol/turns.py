"""The turns of a protocol as a table of masks, and its validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plugrl.core.errors import ContractError, NonFiniteError, PluginError

#: Who speaks in a round, and in which channels.
Turn = Mapping[str, Sequence[str]]


def check_names(
    name: str,
    agents: Sequence[str],
    verifiers: Sequence[str],
    viewers: Mapping[str, Sequence[str]],
    wins: Mapping[str, Any],
) -> None:
    """Check that the declarations of the protocol ``name`` are consistent.

    Raises:
        PluginError: something is no list of names, or an agent is named that is not there.
    """
    if not _is_list(agents) or not agents or not all(isinstance(each, str) for each in agents):
        raise PluginError(f"{name}: agent_names is {agents!r:.60}; write a tuple of names")
    if not isinstance(viewers, Mapping) or not all(map(_is_list, viewers.values())):
        raise PluginError(
            f"{name}: viewers is {viewers!r:.60}; write a tuple of agents for each channel"
        )
    if not _is_list(verifiers) or not verifiers:
        raise PluginError(f"{name}: verifier_names is {verifiers!r:.60}; write a tuple of names")
    if not isinstance(wins, Mapping):
        raise PluginError(f"{name}: wins is {wins!r:.60}; write the verdict that pays, by agent")
    named = {"verifier_names": verifiers, "wins": list(wins)}
    named |= {f"viewers of {channel!r}": seen for channel, seen in viewers.items()}
    for what, given in named.items():
        strange = [agent for agent in given if agent not in agents]
        if strange:
            raise PluginError(
                f"{name}: {what} names {strange[0]!r}, and agent_names has {', '.join(agents)}"
            )


def check_rewards(name: str, rewards: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Check the rewards that the protocol ``name`` returned, and convert them to an array.

    Raises:
        ContractError: they are no numbers, or of another shape.
        NonFiniteError: one is NaN or infinite.
    """
    array = np.asarray(rewards)
    if array.shape != shape or array.dtype.kind not in "biuf":
        raise ContractError(
            f"{name}.rewards gave {array.dtype} of shape {list(array.shape)}; give numbers of "
            f"shape {list(shape)}, a row for each episode and a column for each agent"
        )
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name}.rewards gave NaN or infinity; give finite numbers")
    return array


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def turn_table(
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
    if not _is_list(turns) or not all(
        isinstance(turn, Mapping) or (_is_list(turn) and all(isinstance(k, Mapping) for k in turn))
        for turn in turns
    ):
        raise PluginError(
            f"{name}: turns() gave {turns!r:.60}; give a list of turns, mappings of agents to "
            "lists of channels, or a list of such"
        )
    if not turns or [] in [list(turn) for turn in turns if not isinstance(turn, Mapping)]:
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
        if not _is_list(channels):
            raise PluginError(f"{where} gives {agent!r} {channels!r:.40}; give a list of channels")
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
    rounds, seeds = np.asarray(round), np.asarray(seed)
    there = (rounds >= 0) & (rounds < len(table))
    found: np.ndarray = table[np.where(there, rounds, 0), seeds % table.shape[1]]
    if not there.all():
        there = np.broadcast_to(there, found.shape[: found.ndim - table.ndim + 2])
        found &= there.reshape(*there.shape, *[1] * (table.ndim - 2))
    return found
