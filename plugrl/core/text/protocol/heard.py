"""What an agent knows when it is to speak, for the templates of its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.protocol.state import Verdict
from plugrl.core.text.protocol.prompts import Heard

if TYPE_CHECKING:
    from plugrl.core.text.protocol.episode import Episode

_WORDS = {Verdict.ACCEPT: "accept", Verdict.REJECT: "reject", Verdict.UNDECIDED: None}


def facts_of(episode: Episode, agent: str) -> dict[str, Any]:
    """What templates of ``agent`` may use before its next turn."""
    stage, protocol = episode.stage, episode.stage.protocol
    place, turn = protocol.index(agent), int(episode.state.round[0])
    channels = episode.channels(agent)
    deciding = episode.may_decide(agent)
    stance = Verdict(int(protocol.stances(episode.state.seed)[0, place]))
    return {
        "question": episode.question,
        "solution": episode.solution,
        "item": episode.task.data,
        "agent": agent,
        "provers": list(protocol.prover_names),
        "verifiers": list(protocol.verifier_names),
        "stance": _WORDS[stance],
        "round": turn + 1,
        "rounds": protocol.max_message_rounds,
        "channels": [stage.reader.channel_name(channel) for channel in channels],
        "headers": [stage.reader.header(channel) for channel in channels],
        "heard": heard_by(episode, agent),
        "accept": stage.reader.decision(Verdict.ACCEPT),
        "reject": stage.reader.decision(Verdict.REJECT),
        "may_decide": deciding,
        "must_decide": deciding and episode.must_decide(agent),
    }


def heard_by(episode: Episode, agent: str) -> list[Heard]:
    """What others have said to ``agent`` since it was asked last, in the order that it is shown."""
    stage, protocol = episode.stage, episode.stage.protocol
    turns = [n for n, each in enumerate(episode.rounds) if any(s.agent == agent for s in each.said)]
    sees = protocol.sees(agent)
    order = protocol.channel_order(agent, np.array([episode.seed]))[0]
    heard = []
    # Whoever spoke at the same time as the agent was not heard then.
    for played in episode.rounds[turns[-1] if turns else 0 :]:
        for channel in (sees[number] for number in order):
            heard += [
                Heard(stage.reader.channel_name(channel), said.agent, said.messages[channel])
                for said in played.said
                if said.agent != agent and channel in said.messages
            ]
    return heard
