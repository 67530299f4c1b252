"""``Conversation``: a dialogue with one model, of which every token is kept as it was sampled.

The prompt of a turn is the exact tokens so far and those of the new messages. Only where the chat
template writes the history differently from what was said, such as without its reasoning, a new
trajectory begins with what the template writes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from plugrl.core.chat_template import Message
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.copies import own_copy
from plugrl.core.text.inference.chat import ChatTokenizer, chat_tokenizer, tokens_after_reply
from plugrl.core.text.rollout.fibers import wait_for
from plugrl.core.text.trajectory import NOT_SAMPLED, FinishReason, Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.inference.requests import Completion
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.rollout.task import RolloutTask

#: Asks a model: name, prompt tokens and sampling to a completion.
Asks = Callable[[str, list[int], "SamplingParams"], Awaitable["Completion"]]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a conversation may be, in tokens.

    Args:
        prompt: what comes before the first answer.
        response: everything after it, of each trajectory.
        total: a whole trajectory, what the model's context leaves.
    """

    prompt: int
    response: int
    total: int


@dataclass(slots=True)
class _Segment:
    """Tokens that follow one another, from a prompt to the last sampled one."""

    text: str
    tokens: list[int]
    start: int
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    #: The message that a token was sampled for; -1: none.
    owners: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    temperature: float | None = None

    def copy(self) -> _Segment:
        """The same tokens, to go on with otherwise."""
        return replace(
            self,
            tokens=list(self.tokens),
            logprobs=list(self.logprobs),
            versions=list(self.versions),
            owners=list(self.owners),
        )

    def add_text(self, text: str, tokens: Sequence[int]) -> None:
        """Add tokens that no model sampled: they are never trained."""
        self.text += text
        self.tokens += tokens
        missing = len(self.tokens) - len(self.owners)
        self.owners += [-1] * missing
        self.logprobs += [0.0] * missing
        self.versions += [NOT_SAMPLED] * missing

    def add_completion(self, text: str, completion: Completion, owner: int) -> None:
        """Add the tokens of an answer."""
        count = len(completion.tokens)
        self.text += text
        self.tokens += completion.tokens
        self.logprobs += completion.logprobs
        self.versions += completion.versions or [completion.version] * count
        self.owners += [owner] * count
        self.finish_reason = completion.finish_reason
        self.temperature = completion.temperature


class Conversation:
    """A dialogue between messages that are given and replies that a model samples.

    It keeps tokens, log-probabilities and versions of all turns as they were sampled; nothing is
    tokenised a second time. A worker says something with :meth:`add`, lets the model speak with
    :meth:`reply`, and gives what :meth:`trajectories` returns.

    Args:
        task: the attempt that it belongs to.
        model: who is asked; its tokenizer has a chat template.
        messages: what comes before the first reply; None: the problem's prompt.
        tools: schemas of the tools, for the chat template.
        budget: how long it may be; None: as long as the model's context.
        ask: asks the model; None: ``task.ask``.

    Attributes:
        messages: everything said so far; replies hold the text that was sampled, and
            ``tool_calls`` once they are known.
        truncated: a limit of tokens or turns ended it.
        asked: what the newest reply answers, as the chat template wrote it.
    """

    def __init__(
        self,
        task: RolloutTask,
        model: str,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        budget: Budget | None = None,
        ask: Asks | None = None,
    ) -> None:
        self.messages: list[Message] = own_copy(
            list(task.messages if messages is None else messages)
        )
        self.model = model
        self.tools = own_copy(list(tools))
        self.truncated = False
        self.asked = ""
        self._task = task
        self._tokenizer: ChatTokenizer = chat_tokenizer(task.tokenizers[model], model)
        self._budget = _whole_context(task, model) if budget is None else budget
        self._ask: Asks = ask or task.ask
        self._segments: list[_Segment] = []

    @property
    def segments(self) -> int:
        """How many trajectories it has become."""
        return len(self._segments)

    def sampled_tokens(self, number: int) -> list[int]:
        """The tokens that were sampled for a message; none for what was not."""
        return [
            token
            for segment in self._segments
            for token, owner in zip(segment.tokens, segment.owners, strict=True)
            if owner == number
        ]

    def fork(self, task: RolloutTask | None = None, ask: Asks | None = None) -> Conversation:
        """A conversation that was the same so far, of another attempt or asked in another way."""
        new = copy.copy(self)
        new.messages = own_copy(self.messages)
        new._segments = [segment.copy() for segment in self._segments]
        new._task = self._task if task is None else task
        new._ask = self._ask if ask is None else ask
        return new

    def add(self, message: Message) -> None:
        """Say something; what the tokenizer cannot write is left out of tools' messages."""
        content = message.get("content")
        if message["role"] == "tool" and isinstance(content, str):
            message = {**message, "content": self._tokenizer.writable(content)}
        self.messages.append(message)

    async def reply(self, sampling: SamplingParams | None = None) -> str | None:
        """Let the model speak; None: no token is left for it, and the conversation is over.

        Args:
            sampling: how; None: as the rollout worker's settings say.

        Raises:
            ConfigError: what comes before the first reply is over ``budget.prompt``, or the chat
                template fails.
        """
        segment, text, tokens = self._prompt()
        length = len(tokens) + (len(segment.tokens) if segment else 0)
        start = segment.start if segment else length
        room = self._room(start, length)
        if room < 1:
            self._no_room(length)
            return None
        if segment is None:
            segment = _Segment("", [], len(tokens))
            self._segments.append(segment)
        segment.add_text(text, tokens)
        self.asked = segment.text
        sampling = self._task.sampling if sampling is None else sampling
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        completion = await self._ask(self.model, list(segment.tokens), sampling)
        said = self._tokenizer.decode(completion.tokens)
        segment.add_completion(said, completion, len(self.messages))
        self.messages.append({"role": "assistant", "content": said})
        self.truncated = completion.finish_reason == "length"
        return said

    def reply_now(self, sampling: SamplingParams | None = None) -> str | None:
        """:meth:`reply` for plain functions: it returns with the answer, and others go on.

        Raises:
            UsageError: an ``async`` function or another thread calls it.
        """
        return wait_for(
            self.reply(sampling),
            "Conversation.reply_now is for plain rollout functions, in the thread that called "
            "them; in an async one write `await conversation.reply()`",
        )

    def end_truncated(self) -> None:
        """Say that a limit ended the conversation before an answer was final."""
        self.truncated = True
        if self._segments:
            self._segments[-1].finish_reason = "length"

    def _no_room(self, length: int) -> None:
        if not self._segments:
            raise ConfigError(
                f"problem {self._task.item} has a prompt of {length} tokens, all told, "
                f"which leaves no room in the {self._budget.total} tokens of a conversation; "
                "leave the problem out"
            )
        self.end_truncated()

    def _room(self, start: int, length: int) -> int:
        budget = self._budget
        if not self._segments and length > budget.prompt:
            raise ConfigError(
                f"problem {self._task.item} has a prompt of {length} tokens, all told, "
                f"more than rollout_worker.max_prompt_length={budget.prompt}; "
                "raise it, or leave the problem out"
            )
        whole = min(budget.total, budget.prompt + budget.response)
        return min(budget.response - (length - start), whole - length)

    def _prompt(self) -> tuple[_Segment | None, str, list[int]]:
        """The segment that goes on, or None, and the text and tokens that come next."""
        text = self._render_messages()
        if self._segments:
            segment = self._segments[-1]
            if text.startswith(segment.text):
                rest = text[len(segment.text) :]
                encoded = self._tokenizer.encode_chat(rest)
                tokens = tokens_after_reply(self._tokenizer, segment.tokens[-1], encoded)
                if tokens is not None:
                    return segment, rest, tokens
        return None, text, self._tokenizer.encode_chat(text)

    def _render_messages(self) -> str:
        """The messages as the template writes them, replies word for word where it can be."""
        exact = [
            {key: value for key, value in message.items() if key in _SAID}
            if message["role"] == "assistant"
            else message
            for message in self.messages
        ]
        try:
            return self._tokenizer.render_chat(exact, self.tools or None)
        except ConfigError:
            # Some templates refuse results of calls that no message has made.
            structured = [_split_calls(message) for message in self.messages]
            if structured == exact:
                raise
            return self._tokenizer.render_chat(structured, self.tools or None)

    def trajectories(self, mask: Sequence[bool] | None = None) -> list[Trajectory]:
        """What was sampled, to learn from: one trajectory, unless the template rewrote the history.

        Args:
            mask: for each message, whether its tokens are trained. Only sampled ones can be. None:
                all that were.
        """
        mask = [True] * len(self.messages) if mask is None else mask
        return [self._trajectory(segment, mask) for segment in self._segments]

    def _trajectory(self, segment: _Segment, mask: Sequence[bool]) -> Trajectory:
        return Trajectory(
            tokens=segment.tokens,
            loss_mask=[int(owner >= 0 and bool(mask[owner])) for owner in segment.owners],
            logprobs=segment.logprobs,
            versions=segment.versions,
            model=self.model,
            group_id=self._task.group_id,
            run_id=self._task.run_id,
            finish_reason=segment.finish_reason,
            is_val=self._task.is_val,
            temperature=segment.temperature,
        )


def _whole_context(task: RolloutTask, model: str) -> Budget:
    """The budget of a conversation that only the model's context bounds."""
    context = task.limits[model].context if model in task.limits else sys.maxsize
    return Budget(context, context, context)


_SAID = frozenset({"role", "content"})


def _split_calls(message: Message) -> Message:
    """A reply with its calls apart from its text."""
    if "tool_calls" not in message:
        return message
    return {**message, "content": message.get("spoken", message["content"])}
