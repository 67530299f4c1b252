"""Episodes as one nested dictionary of arrays, round by round and agent by agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.protocol.nested_array_dict import STRING, NestedArrayDict
from plugrl.core.protocol.state import Verdict

if TYPE_CHECKING:
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.protocol.episode import Episode, Round

_IS_SOME = np.frompyfunc(lambda text: text is not None, 1, 1)


def nested_rollouts(episodes: Sequence[Episode], protocol: Protocol) -> NestedArrayDict:
    """n episodes of at most R rounds between A agents in C channels, with batch size ``(n, R)``.

    Entries: ``round``, ``seed``, ``y`` (the label), ``datapoint_id``, ``done``, ``terminated`` and
    ``padding``, true after an episode has ended; ``question`` and ``solution``; ``message_history``
    ``[n, R, R, C]``, all that was said before a round; under ``agents``, what each said in a round:
    ``message`` ``[n, R, A, C]``, ``raw_message``, ``chat`` (JSON of the messages that it was asked
    with), ``decision``, ``retry_count`` and ``malformed``, ``[n, R, A]``; and ``next``, ``agents``,
    ``reward``. Where nobody spoke, there is no text: None.

    Raises:
        ContractError: there is no episode.
    """
    if not episodes:
        raise ContractError("rollouts need at least one episode")
    sizes = (len(episodes), protocol.max_message_rounds)
    played = np.array([[len(each.rounds)] for each in episodes])
    turns = np.arange(sizes[1])
    ended = np.array([[each.ended] for each in episodes])

    def repeated(values: Sequence[Any], dtype: Any) -> np.ndarray:
        return np.repeat(np.array(values, dtype=dtype)[:, None], sizes[1], axis=1)

    done = ended & (turns == played - 1)
    agents = _agents(episodes, protocol, sizes)
    rewards = np.zeros((*sizes, len(protocol.agent_names)))
    for number, episode in enumerate(episodes):
        for turn, each in enumerate(episode.rounds):
            rewards[number, turn] = each.rewards
    return NestedArrayDict(
        {
            "round": np.broadcast_to(turns, sizes).copy(),
            "seed": repeated([each.seed for each in episodes], np.int64),
            "y": repeated([each.label for each in episodes], np.int64),
            "datapoint_id": repeated([each.task.item for each in episodes], np.int64),
            "done": done,
            "terminated": done.copy(),
            "padding": turns >= played,
            "question": repeated([each.question for each in episodes], object).astype(STRING),
            "solution": repeated([each.solution for each in episodes], object).astype(STRING),
            "message_history": _history(agents["message"]).astype(STRING),
            "agents": NestedArrayDict(
                {
                    name: value.astype(STRING) if value.dtype == object else value
                    for name, value in agents.items()
                },
                sizes,
            ),
            "next": NestedArrayDict({"agents": NestedArrayDict({"reward": rewards}, sizes)}, sizes),
        },
        sizes,
    )


def _agents(
    episodes: Sequence[Episode], protocol: Protocol, sizes: tuple[int, int]
) -> dict[str, np.ndarray]:
    shape = (*sizes, len(protocol.agent_names))
    found: dict[str, np.ndarray] = {
        "message": np.full((*shape, len(protocol.channels)), None, dtype=object),
        "raw_message": np.full(shape, None, dtype=object),
        "chat": np.full(shape, None, dtype=object),
        "decision": np.full(shape, int(Verdict.UNDECIDED), np.int64),
        "retry_count": np.zeros(shape, np.int64),
        "malformed": np.zeros(shape, bool),
    }
    for number, episode in enumerate(episodes):
        for turn, each in enumerate(episode.rounds):
            _write(found, (number, turn), each, protocol)
    return found


def _write(
    found: dict[str, np.ndarray], place: tuple[int, int], played: Round, protocol: Protocol
) -> None:
    for said in played.said:
        at = (*place, protocol.index(said.agent))
        found["raw_message"][at] = said.raw
        found["chat"][at] = json.dumps(list(said.chat), ensure_ascii=False)
        found["decision"][at] = int(said.decision)
        found["retry_count"][at] = said.retries
        found["malformed"][at] = bool(said.fault)
        for channel, text in said.messages.items():
            found["message"][(*at, protocol.channels.index(channel))] = text


def _history(messages: np.ndarray) -> np.ndarray:
    """What was said before each round, ``[n, R, R, C]``, of messages ``[n, R, A, C]``."""
    episodes, rounds, agents, channels = messages.shape
    said = np.full((episodes, rounds, channels), None, dtype=object)
    for agent in range(agents):
        # One agent speaks in a channel in a round.
        spoke = _IS_SOME(messages[:, :, agent]).astype(bool)
        said[spoke] = messages[:, :, agent][spoke]
    history = np.full((episodes, rounds, rounds, channels), None, dtype=object)
    for turn in range(rounds):
        history[:, turn, :turn] = said[:, :turn]
    return history
