"""Episodes: who hears what, what is trained, what malformed replies come to, and forks."""

import asyncio
import json

import numpy as np
import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.state import Verdict
from plugrl.core.text.protocol.nested import nested_rollouts

AGENTS = {"prover": {"model": "strong"}, "verifier": {"model": "weak"}}
NIP = {"protocol": {"type": "nip", "max_message_rounds": 4}, "model": "weak", "agents": AGENTS}


def played(episode):
    return asyncio.run(episode.play())


def test_agents_hear_each_other_and_the_verdict_pays(begin):
    replies = {"weak": ["Why?", "Decision: accept"], "strong": ["Count."]}
    episode, table, _ = begin(replies, **NIP)
    played(episode)
    assert episode.verdict == Verdict.ACCEPT
    assert len(episode.rounds) == 3
    # By the reward table of nip: the verifier is right, and the prover's verdict is given.
    assert episode.rewards.tolist() == [1.0, 1.0]
    assert [model for model, _ in table.asked] == ["weak", "strong", "weak"]
    assert "Why?" in table.asked[1][1]
    assert "Count." not in table.asked[1][1]
    assert "Count." in table.asked[2][1]


def test_what_was_sampled_is_trained_exactly_once_and_nothing_else(begin):
    replies = {"weak": ["Why?", "Decision: accept"], "strong": ["Count."]}
    episode, table, _ = begin(replies, **NIP)
    played(episode)
    prover, verifier = episode.trajectories()
    assert (prover["agent"], prover.model) == ("prover", "strong")
    assert (verifier["agent"], verifier.model) == ("verifier", "weak")
    decode = table.tokenizer.decode
    trained = [t for t, m in zip(verifier.tokens, verifier.loss_mask, strict=True) if m]
    assert decode(trained) == "Why?Decision: accept"
    assert sum(verifier.loss_mask) == len("Why?Decision: accept") + 2
    ends = table.tokenizer.eos_token_id
    assert [t for t in trained if t == ends] == [ends, ends]
    assert verifier["turn_rewards"] == [0.0, 0.0, 1.0]
    assert verifier.reward == 1.0
    assert {v for v, m in zip(verifier.versions, verifier.loss_mask, strict=True) if m} == {3}


def test_frozen_agents_have_trajectories_that_train_nothing(begin):
    agents = {**AGENTS, "prover": {"model": "strong", "frozen": True}}
    episode, *_ = begin(
        {"weak": ["?", "Decision: reject"], "strong": ["!"]}, **NIP | {"agents": agents}
    )
    prover, verifier = played(episode).trajectories()
    assert sum(prover.loss_mask) == 0
    assert sum(verifier.loss_mask) > 0
    # Wrong: the label is 1.
    assert (prover.reward, verifier.reward) == (0.0, -1.0)


def test_malformed_replies_are_sampled_again_and_then_undecided(begin):
    solo = {"protocol": "solo_verifier", "model": "weak", "max_retries": 2}
    episode, table, _ = begin(
        {"weak": ["Hm", "Decision: accept. Decision: reject", "Decision: ACCEPT"]}, **solo
    )
    played(episode)
    (said,) = episode.rounds[0].said
    assert (said.retries, said.decision, said.fault) == (2, Verdict.ACCEPT, "")
    # Each try begins with the same prompt: malformed replies are not in the conversation.
    assert len({prompt for _, prompt in table.asked}) == 1
    (trajectory,) = episode.trajectories()
    assert "Hm" not in table.tokenizer.decode(trajectory.tokens)

    episode, table, _ = begin({"weak": ["Hm"]}, **solo)
    played(episode)
    (said,) = episode.rounds[0].said
    assert (len(table.asked), said.retries, said.decision) == (3, 2, Verdict.UNDECIDED)
    assert said.fault
    assert episode.ended
    assert episode.rewards.tolist() == [-1.0]


def test_a_greedy_model_is_asked_once(begin):
    episode, table, _ = begin(
        {"weak": ["Hm"]}, protocol="solo_verifier", model="weak", temperature=0.0
    )
    played(episode)
    assert len(table.asked) == 1


def test_a_decision_before_it_counts_is_text(begin):
    section = {**NIP, "protocol": {**NIP["protocol"], "min_message_rounds": 2}}
    replies = {"weak": ["Decision: accept", "Decision: reject"], "strong": ["No"]}
    episode, *_ = begin(replies, **section)
    played(episode)
    assert episode.rounds[0].said[0].messages == {"main": "Decision: accept"}
    assert episode.verdict == Verdict.REJECT


def test_parts_of_a_reply_go_to_their_channels(begin):
    section = {
        "protocol": {"type": "mnip", "max_message_rounds": 4},
        "model": "m",
        "max_retries": 0,
    }
    names = {"prover0_channel": "Ann", "prover1_channel": "Bob"}
    replies = {"m": ["To Ann: who\nare you?\nTo Bob:\nAnd you?", "ann", "bob", "Decision: accept"]}
    episode, table, _ = begin(replies, channel_names=names, **section)
    played(episode)
    assert episode.rounds[0].said[0].messages == {
        "prover0_channel": "who\nare you?", "prover1_channel": "And you?",
    }  # fmt: skip
    heard_by_0, heard_by_1 = table.asked[1][1], table.asked[2][1]
    # In mnip each prover hears the verifier in its own channel alone.
    assert "are you?" in heard_by_0
    assert "And you?" not in heard_by_0
    assert "And you?" in heard_by_1
    assert "are you?" not in heard_by_1
    last = table.asked[3][1]
    assert "ann" in last
    assert "bob" in last
    assert episode.rewards.tolist() == [1.0, 1.0, 1.0]


def test_those_who_speak_at_once_hear_each_other_a_round_later(begin):
    section = {"protocol": {"type": "debate", "max_message_rounds": 6}, "model": "m"}
    both = "To prover0_channel: a\nTo prover1_channel: b"
    replies = {"m": [both, "first", "second", both, "third", "fourth", "Decision: accept"]}
    episode, table, _ = begin(replies, **section, data={"label": 0})
    asyncio.run(episode.advance())
    asyncio.run(episode.advance())
    assert "first" not in table.asked[2][1]
    asyncio.run(episode.advance())
    asyncio.run(episode.advance())
    assert "second" in table.asked[4][1]
    assert "first" in table.asked[5][1]


def test_forks_go_on_by_themselves(begin):
    replies = {"weak": ["Why?", "Decision: accept", "Decision: reject"], "strong": ["Count."]}
    episode, table, _ = begin(replies, **NIP)
    asyncio.run(episode.advance())
    asyncio.run(episode.advance())
    other = episode.fork(run=7)
    played(episode)
    assert len(other.rounds) == 2
    assert not other.ended
    played(other)
    assert (episode.verdict, other.verdict) == (Verdict.ACCEPT, Verdict.REJECT)
    first, second = episode.trajectories()[1], other.trajectories()[1]
    assert (first.run_id, second.run_id) == (0, 7)
    same = [a == b for a, b in zip(first.tokens, second.tokens, strict=False)]
    decoded = table.tokenizer.decode(first.tokens[: same.index(False)])
    assert decoded.endswith("Decision: ")
    assert "Count." in decoded


def test_written_replies_are_not_sampled(begin):
    agents = {**AGENTS, "prover": {"script": "proof"}}
    section = {**NIP, "agents": agents}
    data = {"proof": ["One."]}
    episode, table, worker = begin({"weak": ["?", "Decision: accept"]}, data=data, **section)
    played(episode)
    assert [model for model, _ in table.asked] == ["weak", "weak"]
    assert "One." in table.asked[1][1]
    assert worker.models == {"verifier": "weak"}
    assert worker.frozen == ("prover",)
    assert sum(episode.trajectories()[0].loss_mask) == 0
    with pytest.raises(ConfigError, match="'proof' holds 3"):
        played(begin({"weak": ["?"]}, data={"proof": 3}, **section)[0])


@pytest.mark.parametrize("label", [None, 2, "1", 0.5])
def test_labels_are_0_or_1(begin, label):
    with pytest.raises(ConfigError, match="problem 5: 'label' holds"):
        begin({"m": ["x"]}, data={"label": label}, protocol="solo_verifier", model="m")


def test_nested_rollouts_tell_what_happened(begin):
    replies = {"weak": ["Why?", "Decision: accept"], "strong": ["Count."]}
    first, _, worker = begin(replies, **NIP)
    second, *_ = begin({"weak": ["Decision: reject"], "strong": ["x"]}, **NIP)
    rollouts = nested_rollouts([played(first), played(second)], worker.protocol)
    assert rollouts.batch_size == (2, 4)
    assert rollouts["padding"].tolist() == [[False, False, False, True], [False, True, True, True]]
    assert rollouts["done"].tolist() == [[False, False, True, False], [True, False, False, False]]
    assert rollouts["agents", "decision"][:, :, 1].tolist() == [[2, 2, 1, 2], [0, 2, 2, 2]]
    assert rollouts["agents", "message"][0, :, 1, 0].tolist() == ["Why?", None, "", None]
    assert rollouts["agents", "raw_message"][0, 1, 0] == "Count."
    assert rollouts["next", "agents", "reward"][0].tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    assert rollouts["message_history"][0, 2, :, 0].tolist() == ["Why?", "Count.", None, None]
    chat = json.loads(rollouts["agents", "chat"][0, 2, 1])
    assert [m["role"] for m in chat] == ["system", "user", "assistant", "user"]
    assert rollouts["agents", "chat"][0, 0, 0] is None
    assert np.asarray(rollouts["y"]).tolist() == [[1] * 4] * 2
    assert rollouts["datapoint_id"][0, 0] == 5
    assert rollouts["question"][1, 3] == "Is 1+1 2?"
