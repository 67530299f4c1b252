"""``InMemoryTracer``: what an agent said, for workers that read it call by call.

Guides of other frameworks write a whole ``run_agent`` with it: run the agent, read its trace, judge
the answer, and hand over the trajectory. Here tokens are recorded as they are sampled, so that the
trace only shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugrl.core.text.agents.conversation import Conversation

#: One reply: the messages before it, itself, the tools, and its tokens as they were sampled.
Reply = dict[str, Any]


def replies_of(conversations: Sequence[Conversation]) -> list[Reply]:
    """All replies of some conversations, in order."""
    return [
        {
            "type": "LLM",
            "prompt_messages": conversation.messages[:number],
            "response_message": dict(message),
            "tools": conversation.tools,
            "tokens": conversation.sampled_tokens(number),
        }
        for conversation in conversations
        for number, message in enumerate(conversation.messages)
        if conversation.sampled_tokens(number)
    ]


class InMemoryTracer:
    """Keeps what an agent says: ``self.agent.run(query, tracer=tracer)``."""

    def __init__(self) -> None:
        self._conversations: list[Conversation] = []

    def add(self, conversations: Sequence[Conversation]) -> None:
        """Keep what was said in some conversations."""
        self._conversations += conversations

    def get_trace(self) -> dict[str, Any]:
        """What was said: ``children`` has one mapping for each reply."""
        return {"type": "AGENT", "children": replies_of(self._conversations)}


@dataclass(frozen=True, slots=True)
class Submission:
    """What a worker that judges by itself hands over: the reward of what the agent said.

    Attributes:
        reward: of the attempt.
        metrics: of the attempt.
        mask: for each reply, whether it is trained; None: as the worker's
            ``get_train_loss_mask`` says.
    """

    reward: Any
    metrics: Mapping[str, Any] = field(default_factory=dict)
    mask: tuple[bool, ...] | None = None
