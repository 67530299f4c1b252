"""Conversations in rollout workers written by hand."""

import pytest

from plugrl import Conversation, RolloutWorker, SamplingParams
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.trajectory import NOT_SAMPLED
from plugrl.testing.scripts import Letters, ScriptedService


class TwoTurns(RolloutWorker):
    """Asks twice."""

    async def rollout(self, task):
        conversation = Conversation(task, "policy")
        await conversation.reply()
        conversation.add({"role": "user", "content": "?"})
        await conversation.reply()
        return conversation.trajectories()


class Plain(RolloutWorker):
    """Asks twice, and trains the second answer alone."""

    def rollout(self, task):
        conversation = Conversation(task, "policy")
        conversation.reply_now()
        conversation.add({"role": "user", "content": "?"})
        conversation.reply_now(SamplingParams(max_new_tokens=1))
        return conversation.trajectories([False, False, False, True])


def attempt(worker, service):
    prompt = Prompt({"prompt": "ab"}, 0, 0, "g", 0)
    (trajectory,) = LockstepRollouts(worker, {"policy": service}, 0).collect(
        [prompt], step=1, sampling=SamplingParams(max_new_tokens=8), is_val=False
    )
    return trajectory


@pytest.fixture
def service():
    return ScriptedService(lambda prompt: "yz" if "?" in prompt else "x", version=4)


def test_two_turns_are_one_trajectory_of_what_was_sampled(service):
    trajectory = attempt(TwoTurns({}), service)
    assert trajectory.valid, trajectory.failure
    encode = Letters().encode_chat
    # The end token of the first answer was sampled; the template's own is not written again.
    pieces = [encode("u:ab\x01a:"), encode("x\x01"), encode("u:?\x01a:"), encode("yz\x01")]
    assert trajectory.tokens == sum(pieces, [])
    lengths = [len(piece) for piece in pieces]
    assert trajectory.loss_mask == sum(([n % 2] * length for n, length in enumerate(lengths)), [])
    first, second = (completion for _, completion in service.given)
    assert trajectory.logprobs == [
        *([0.0] * lengths[0]),
        *first.logprobs,
        *([0.0] * lengths[2]),
        *second.logprobs,
    ]
    assert trajectory.versions == [4 if bit else NOT_SAMPLED for bit in trajectory.loss_mask]


def test_a_plain_worker_asks_too_and_chooses_what_is_trained(service):
    trajectory = attempt(Plain({}), service)
    assert trajectory.valid, trajectory.failure
    assert Letters().decode(trajectory.tokens) == "u:aba:xu:?a:y"
    trained = [t for t, bit in zip(trajectory.tokens, trajectory.loss_mask, strict=True) if bit]
    assert Letters().decode(trained) == "y"
    assert trajectory.finish_reason == "length"
