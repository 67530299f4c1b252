"""Who speaks in episodes: models that are asked, or replies that are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.state import Verdict
from plugrl.core.text.inference.chat import encode_reply
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.trajectory import NOT_SAMPLED

if TYPE_CHECKING:
    from plugrl.core.chat_template import Message
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.protocol.prompts import AgentPrompts
    from plugrl.core.text.protocol.replies import ReplyReader
    from plugrl.core.text.rollout.task import RolloutTask


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks for an agent.

    Args:
        model: that is asked.
        frozen: what it says is not trained.
        temperature: in training; None: as all.
        max_new_tokens: of a reply; None: as all.
        script: column with its replies, where they are written; None: the model is asked.
    """

    model: str
    frozen: bool = False
    temperature: float | None = None
    max_new_tokens: int | None = None
    script: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """What the episodes of a worker have in common.

    Args:
        protocol: who speaks when, and what it is worth.
        speakers: by agent.
        prompts: by agent.
        reader: takes replies apart.
        max_retries: times that a malformed reply is sampled again.
        max_prompt_length: tokens before the first reply of an agent.
        label_key: column with the label.
        solution_key: column with what is claimed.
        teaches: written replies are there to be learned.
    """

    protocol: Protocol
    speakers: Mapping[str, Speaker]
    prompts: Mapping[str, AgentPrompts]
    reader: ReplyReader
    max_retries: int = 3
    max_prompt_length: int = 1024
    label_key: str = "label"
    solution_key: str = "solution"
    teaches: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """What an agent said in a round.

    Args:
        agent: who it was.
        chat: the messages that it was asked with.
        raw: the reply as sampled.
        messages: what it comes to, by channel.
        decision: and what is decided.
        retries: malformed replies before it.
        fault: why it is malformed itself; "": it is not.
    """

    agent: str
    chat: tuple[Message, ...]
    raw: str
    messages: Mapping[str, str]
    decision: Verdict
    retries: int = 0
    fault: str = ""


class Script:
    """Answers with the written replies of a problem, one after the other; the last one stays.

    Args:
        task: the attempt.
        column: with a text, or a list of them.
        said: how many have been said.

    Raises:
        ConfigError: the problem has no such column, or it holds no replies.
    """

    def __init__(self, task: RolloutTask, agent: str, column: str, said: int) -> None:
        replies: Any = task.data.get(column)
        self._replies: Sequence[str] = [replies] if isinstance(replies, str) else replies
        if (
            not isinstance(self._replies, (list, tuple))
            or not self._replies
            or not all(isinstance(reply, str) for reply in self._replies)
        ):
            raise ConfigError(
                f"problem {task.item}: {column!r} holds {replies!r:.60}; a text or a list of them "
                f"is expected (rollout_worker.agents.{agent}.script)"
            )
        self._task, self._agent, self._said = task, agent, said

    async def __call__(self, model: str, tokens: list[int], sampling: SamplingParams) -> Completion:
        """The next reply, ended as its model ends them.

        Raises:
            ConfigError: it is longer than replies may be.
        """
        tokenizer = self._task.tokenizers[model]
        text = self._replies[min(self._said, len(self._replies) - 1)]
        reply = encode_reply(tokenizer, text, chat=True)
        if len(reply) > sampling.max_new_tokens:
            raise ConfigError(
                f"problem {self._task.item}: a written reply of {self._agent} has {len(reply)} "
                f"tokens, and {sampling.max_new_tokens} are possible "
                "(rollout_worker.max_response_length)"
            )
        return Completion(reply, [0.0] * len(reply), "stop", NOT_SAMPLED)
