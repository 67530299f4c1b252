"""Rollouts written by hand, as ``nested_rollouts`` makes them of episodes."""

import json

import numpy as np

from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.protocol.protocol import make_protocol

ADP = {"type": "adp"}


def chat(*texts):
    """Messages that alternate between user and assistant."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def rollouts(episodes, protocol=ADP, **columns):
    """Episodes as a batch (n, R).

    An episode is ``{"y": label, "rounds": [{agent: (asked, reply, decision, reward)}, ...]}``;
    the decision is 2 and the reward 0 when they are left out.
    """
    made = make_protocol(protocol)
    n, rounds = len(episodes), made.max_message_rounds
    agents, channels = len(made.agent_names), len(made.channels)
    asked = np.full((n, rounds, agents), "", object)
    raw, message = asked.copy(), np.full((n, rounds, agents, channels), "", object)
    decision = np.full((n, rounds, agents), 2)
    reward, retried = np.zeros((n, rounds, agents)), np.zeros((n, rounds, agents), int)
    padding = np.ones((n, rounds), bool)
    for row, episode in enumerate(episodes):
        for turn, said in enumerate(episode["rounds"]):
            padding[row, turn] = False
            for agent, values in said.items():
                place = made.index(agent)
                messages, reply, *rest = values
                asked[row, turn, place] = json.dumps(messages) if messages else ""
                raw[row, turn, place] = reply
                message[row, turn, place, 0] = reply
                decision[row, turn, place], reward[row, turn, place] = (
                    (*rest, 2, 0.0)[:2] if len(rest) != 1 else (rest[0], 0.0)
                )
    labels = np.array([episode["y"] for episode in episodes])
    wide = lambda values: np.repeat(np.asarray(values)[:, None], rounds, 1)  # noqa: E731
    return NestedArrayDict(
        {
            "round": np.tile(np.arange(rounds), (n, 1)),
            "seed": wide(np.arange(n)),
            "y": wide(labels),
            "datapoint_id": wide([e.get("problem", i) for i, e in enumerate(episodes)]),
            "padding": padding,
            "question": wide([e.get("question", "") for e in episodes]),
            "agents": {
                "chat": asked,
                "raw_message": raw,
                "message": message,
                "decision": decision,
                "retry_count": retried,
            },
            "next": {"agents": {"reward": reward}},
            **columns,
        },
        (n, rounds),
    )
