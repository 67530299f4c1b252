"""Private channels, roles and seeds: what agents are asked with, by protocol."""

import asyncio
import json

import pytest

from plugrl.core.text.protocol.nested import nested_rollouts

ROUNDS = 6
AGENTS = {name: {"model": name} for name in ("prover0", "prover1", "verifier")}
PARTS = "To prover0_channel: for0 {n}\nTo prover1_channel: for1 {n}"
REPLIES = {
    "prover0": ["from0 a", "from0 b"],
    "prover1": ["from1 a", "from1 b"],
    "verifier": [PARTS.format(n=1), PARTS.format(n=2), "Decision: accept"],
}


def asked(begin, protocol, **section):
    """The prompts of each agent in an episode of six rounds, and the episode."""
    section = {"protocol": {"type": protocol, "max_message_rounds": ROUNDS}, **section}
    episode, table, _ = begin(REPLIES, model="verifier", agents=AGENTS, **section)
    asyncio.run(episode.play())
    return {
        name: [text for model, text in table.asked if model == name] for name in AGENTS
    }, episode


def test_nothing_of_a_private_channel_is_ever_in_the_other_prover_s_prompt(begin):
    prompts, _ = asked(begin, "mnip")
    assert [len(own) for own in prompts.values()] == [2, 2, 3]
    for mine, other in ((0, 1), (1, 0)):
        last = prompts[f"prover{mine}"][-1]
        assert f"for{mine} 1" in last
        assert f"for{mine} 2" in last
        assert f"from{mine} a" in last
        assert f"for{other}" not in last
        assert f"from{other}" not in last
    for text in ("from0 a", "from0 b", "from1 a", "from1 b"):
        assert text in prompts["verifier"][-1]


def test_in_a_debate_both_channels_are_heard_by_both(begin):
    prompts, _ = asked(begin, "debate")
    for mine, other in ((0, 1), (1, 0)):
        first, last = prompts[f"prover{mine}"]
        assert f"from{other} a" not in first
        assert f"from{other} a" in last
        assert f"from{other} b" not in last
        assert f"for{other} 2" in last


def test_each_message_is_heard_once(begin):
    prompts, _ = asked(begin, "debate")
    for text in ("from0 a", "from0 b", "from1 a", "from1 b"):
        assert prompts["verifier"][-1].count(text) == 1
    assert prompts["prover0"][-1].count("from1 a") == 1


@pytest.mark.parametrize("protocol", ["mnip", "debate"])
def test_arrays_keep_channels_apart(begin, protocol):
    _, episode = asked(begin, protocol)
    of = episode.stage.protocol
    rollouts = nested_rollouts([episode], of)
    message = rollouts["agents", "message"]
    assert message.shape == (1, ROUNDS, 3, 2)
    assert rollouts["message_history"].shape == (1, ROUNDS, ROUNDS, 2)
    for name in ("raw_message", "chat", "decision", "retry_count", "malformed"):
        assert rollouts["agents", name].shape == (1, ROUNDS, 3)
    assert rollouts["next", "agents", "reward"].shape == (1, ROUNDS, 3)
    place = [of.index(f"prover{n}") for n in (0, 1)]
    assert message[0, 1, place[0]].tolist() == ["from0 a", None]
    assert message[0, 1, place[1]].tolist() == [None, "from1 a"]
    assert rollouts["message_history"][0, 2, :2].tolist() == [
        ["for0 1", "for1 1"],
        ["from0 a", "from1 a"],
    ]
    chat = json.loads(rollouts["agents", "chat"][0, 3, place[0]])
    assert "for0 2" in chat[-1]["content"]


def test_attempts_at_a_problem_have_one_seed_and_one_order(begin):
    section = {"protocol": {"type": "debate", "randomize_channel_order": True}}
    first, *_ = begin(REPLIES, model="verifier", agents=AGENTS, run_id=0, **section)
    second, *_ = begin(REPLIES, model="verifier", agents=AGENTS, run_id=9, **section)
    assert first.seed == second.seed
    assert first.seed >= 0


def test_the_same_replies_give_the_same_trajectories(begin):
    def trajectories():
        episode = asked(begin, "debate")[1]
        return [
            (each.tokens, each.loss_mask, each.logprobs, each.reward, each["turn_rewards"])
            for each in episode.trajectories()
        ]

    assert trajectories() == trajectories()


def test_the_simulator_of_zero_knowledge_is_paid_for_likeness(begin):
    def played(simulated):
        section = {"protocol": {"type": "zero_knowledge", "base": {"type": "adp"}}}
        names = ("prover", "verifier", "adversarial_verifier", "simulator")
        own = {name: {"model": name} for name in names}
        proof = "To main_standard: It is.\nTo main_adversarial: It is."
        replies = {
            "prover": [proof],
            "verifier": ["Decision: accept"],
            "adversarial_verifier": ["Decision: accept"],
            "simulator": [simulated],
        }
        episode, table, _ = begin(replies, model="verifier", agents=own, **section)
        asyncio.run(episode.play())
        protocol = episode.stage.protocol
        return dict(zip(protocol.agent_names, episode.rewards.tolist(), strict=True)), table

    same, table = played("Decision: accept")
    other, _ = played("Decision: reject")
    assert same["simulator"] > other["simulator"]
    assert same["adversarial_verifier"] == pytest.approx(-same["simulator"])
    assert same["verifier"] == other["verifier"] == 1.0
    heard = [text for model, text in table.asked if model == "simulator"]
    assert heard
    assert not any("It is." in text for text in heard)
