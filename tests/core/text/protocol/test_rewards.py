"""Rewards of talk are those of the same decisions without text, by every protocol."""

import asyncio

import numpy as np
import pytest

from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.protocol.state import Verdict
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.protocol.worker import ProtocolRolloutWorker

SECTIONS = [
    {"type": "nip", "max_message_rounds": 5},
    {"type": "nip", "max_message_rounds": 5, "min_message_rounds": 3},
    {"type": "adp"},
    {"type": "adp", "shared_reward": True},
    {"type": "debate", "max_message_rounds": 6},
    {"type": "merlin_arthur"},
    {"type": "mnip", "max_message_rounds": 6},
    {"type": "solo_verifier"},
    {"type": "nip", "max_message_rounds": 4, "force_guess": "y"},
    {"type": "debate", "max_message_rounds": 4, "force_guess": "zero"},
]
HEADERS = "To prover0_channel: a\nTo prover1_channel: b\nTo main: c\n"


class Speakers:
    """Every agent is a model of its own name; verifiers decide in turn as planned."""

    def __init__(self, task_ask, plan):
        self.table, self.plan, self.asked = task_ask, plan, []

    async def __call__(self, model, tokens, sampling):
        self.asked.append(model)
        await asyncio.sleep(0)
        turn = self.asked.count(model) - 1
        decision = self.plan[min(turn, len(self.plan) - 1)] if model.startswith("verif") else ""
        text = HEADERS + {"a": "Decision: accept", "r": "Decision: reject", "": ""}[decision]
        reply = [*self.table.tokenizer.encode(text), self.table.tokenizer.eos_token_id]
        return Completion(reply, [-0.5] * len(reply), "stop", 0)


def without_text(section, seed, label, plan):
    """The same decisions, stepped as networks step: rewards of each round, and the verdict."""
    protocol = make_protocol(section)
    state, turns, rewards = protocol.begin([seed], [label]), 0, []
    words = {"a": Verdict.ACCEPT, "r": Verdict.REJECT, "": Verdict.UNDECIDED}
    verifier = protocol.index(protocol.verifier_names[0])
    while not state.ended[0]:
        decisions = np.full((1, len(protocol.agent_names)), int(Verdict.UNDECIDED))
        if protocol.active(state)[0, verifier].any():
            if protocol.deciding(state)[0, verifier]:
                decisions[0, verifier] = int(words[plan[min(turns, len(plan) - 1)]])
            turns += 1
        outcome = protocol.step(state, decisions)
        rewards.append(outcome.rewards[0].tolist())
        state = outcome.state
    return rewards, Verdict(int(state.decided[0, verifier]))


@pytest.mark.parametrize(
    "section", SECTIONS, ids=lambda section: "-".join(map(str, section.values()))
)
@pytest.mark.parametrize("plan", [["a"], ["r"], ["", "a"], ["", "r"], [""]], ids="/".join)
@pytest.mark.parametrize("label", [0, 1])
def test_talk_is_paid_like_the_same_decisions_without_text(begin, section, plan, label):
    protocol = make_protocol(section)
    models = {agent: [""] for agent in protocol.agent_names}
    agents = {agent: {"model": agent} for agent in protocol.agent_names}
    episode, table, _ = begin(
        models,
        data={"label": label},
        protocol=section,
        agents=agents,
        model=protocol.verifier_names[0],
        max_retries=0,
        worker=ProtocolRolloutWorker,
    )
    asyncio.run(episode.play(Speakers(table, plan)))
    rewards, verdict = without_text(section, episode.seed, label, plan)
    assert [each.rewards.tolist() for each in episode.rounds] == rewards
    assert episode.verdict == verdict
    for trajectory in episode.trajectories():
        place = protocol.index(trajectory["agent"])
        assert trajectory["turn_rewards"] == [each[place] for each in rewards]
        assert trajectory.reward == pytest.approx(sum(each[place] for each in rewards))
        assert trajectory.model == trajectory["agent"]
