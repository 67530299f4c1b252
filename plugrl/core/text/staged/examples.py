"""From rollouts to what fine-tune jobs learn from: conversations and their replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ContractError
from plugrl.core.text.jobs.fine_tuning import ASSISTANT, SupervisedExample

if TYPE_CHECKING:
    from plugrl.core.chat_template import Message
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict


def request_messages(
    rollouts: NestedArrayDict, row: int, turn: int, agent: int
) -> list[Message] | None:
    """The messages that an agent was asked with in a round; None: it was not asked.

    Raises:
        ContractError: the entry is no list of messages.
    """
    text = rollouts["agents", "chat"][row, turn, agent]
    if not text or bool(np.asarray(rollouts["padding"])[row, turn]):
        return None
    try:
        messages: Any = json.loads(str(text))
    except ValueError:
        messages = None
    if not isinstance(messages, list):
        raise ContractError(
            f"rollout {row}, round {turn}: agents/chat holds {str(text)!r:.60}, not a JSON list of "
            "messages"
        )
    return messages


def reply_text(rollouts: NestedArrayDict, row: int, turn: int, agent: int) -> str:
    """What the model of an agent replied in a round, as it was sampled."""
    return str(rollouts["agents", "raw_message"][row, turn, agent] or "")


def conversation_of(rollouts: NestedArrayDict, row: int, agent: int) -> list[Message] | None:
    """The whole conversation of an agent in an episode, up to its last reply that says anything.

    None: it never replied.
    """
    for turn in reversed(range(rollouts.batch_size[1])):
        messages = request_messages(rollouts, row, turn, agent)
        reply = "" if messages is None else reply_text(rollouts, row, turn, agent)
        if messages is not None and reply.strip():
            return [*messages, {"role": ASSISTANT, "content": reply}]
    return None


def supervised_examples(
    rollouts: NestedArrayDict, rows: Sequence[int], agent: int
) -> list[SupervisedExample]:
    """An example of each of these episodes in which an agent replied; every reply is learned."""
    found = (conversation_of(rollouts, int(row), agent) for row in rows)
    return [SupervisedExample(messages) for messages in found if messages is not None]


def with_right_decision(
    rollouts: NestedArrayDict,
    rows: Sequence[int],
    agent: int,
    decide: Callable[[int], str],
) -> list[SupervisedExample]:
    """Examples whose last reply is replaced by the right decision; it alone is learned.

    Args:
        rollouts: ``[n, R]``.
        rows: those to learn from.
        agent: the place of the verifier.
        decide: the text that decides for a label.
    """
    examples = []
    for row in map(int, rows):
        messages = conversation_of(rollouts, row, agent)
        if messages is None:
            continue
        right = decide(int(np.asarray(rollouts["y"])[row, 0]))
        decided = [*messages[:-1], {"role": ASSISTANT, "content": right}]
        examples.append(SupervisedExample(decided, (len(decided) - 1,)))
    return examples
