"""The recording of a session, token by token: prompts that continue it, and its trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plugrl.core.chat_template import Message
from plugrl.core.errors import ConfigError
from plugrl.core.text.endpoint.faults import ApiError
from plugrl.core.text.endpoint.messages import key_of
from plugrl.core.text.inference.chat import (
    ChatTokenizer,
    chat_tokenizer,
    encode_continuation,
    tokens_after_reply,
)
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.trajectory import NOT_SAMPLED, Trajectory


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt as tokens, and how it relates to earlier turns.

    Attributes:
        tokens: all of them.
        text: what they say, as far as it is known.
        messages: of a chat; replies that are recorded are in it word for word.
        keys: what the messages are recognised by, as the client sent them.
        follows: the turn whose tokens these begin with; None: none.
    """

    model: str
    tokens: list[int]
    text: str
    messages: list[Message] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    follows: Turn | None = None


@dataclass(eq=False)
class Turn:
    """A prompt and one answer to it.

    Attributes:
        said: the text of the answer, special tokens left out.
        shown: what the client got of it.
        keys: of the messages with the reply.
    """

    prompt: Prompt
    completion: Completion
    said: str
    shown: str
    keys: tuple[str, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """The tokens of the prompt and the answer."""
        return [*self.prompt.tokens, *self.completion.tokens]

    @property
    def text(self) -> str:
        """The text of the prompt and the answer."""
        return self.prompt.text + self.said

    @property
    def messages(self) -> list[Message]:
        """The messages with the reply, word for word."""
        return [*self.prompt.messages, {"role": "assistant", "content": self.said}]

    def versions(self) -> list[int]:
        """The policy version of each token of the answer."""
        given = self.completion.versions
        return given or [self.completion.version] * len(self.completion.tokens)

    def as_json(self) -> dict[str, Any]:
        """The turn in plain values."""
        return {
            "model": self.prompt.model,
            "prompt_token_ids": self.prompt.tokens,
            "token_ids": self.completion.tokens,
            "logprobs": self.completion.logprobs,
            "weight_versions": self.versions(),
            "temperature": self.completion.temperature,
            "finish_reason": self.completion.finish_reason,
            "messages": self.messages if self.keys else None,
            "text": self.said,
            "continues": self.prompt.follows is not None,
        }


class Recording:
    """The turns of one session, in the order of their answers.

    A prompt that continues an earlier turn reuses its recorded tokens and encodes only what is new.
    Decoding and encoding an answer again may give other tokens, and training on tokens that were
    never sampled would be off-policy. Where the chat template rewrites the history, for example by
    dropping the reasoning, the prompt is encoded from its beginning and starts a new trajectory.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._continued: set[Turn] = set()

    def add(
        self,
        prompt: Prompt,
        completion: Completion,
        said: str,
        shown: str,
        reply: Message | None = None,
    ) -> Turn:
        """Record an answer; ``reply`` is the message that the client got, if it is a chat."""
        keys = () if reply is None else (*prompt.keys, key_of(reply))
        turn = Turn(prompt, completion, said, shown, keys)
        self.turns.append(turn)
        if prompt.follows is not None:
            self._continued.add(prompt.follows)
        return turn

    def chat(
        self,
        model: str,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Make the prompt for ``messages`` of a chat; ``options`` are variables of its template.

        Raises:
            ApiError: the tokenizer has no chat template, or the template or the tokenizer cannot
                write them.
        """
        try:
            writer = chat_tokenizer(tokenizer, model)
        except ConfigError as error:
            raise ApiError(400, str(error), "messages", "no_chat_template") from error
        sent = [_without_unencodable(message, writer) for message in messages]
        keys = tuple(key_of(message) for message in messages)
        before = self._longest_history(model, keys)
        exact = sent if before is None else [*before.messages, *sent[len(before.keys) :]]
        try:
            text = _render_messages(writer, exact, sent, tools, options)
            if before is not None and text.startswith(before.text):
                rest = text[len(before.text) :]
                tokens = tokens_after_reply(writer, before.tokens[-1], writer.encode_chat(rest))
                if tokens is not None:
                    return Prompt(model, [*before.tokens, *tokens], text, exact, keys, before)
            return Prompt(model, writer.encode_chat(text), text, exact, keys)
        except Exception as error:
            raise _encoding_error(error, "messages") from error

    def text(self, model: str, tokenizer: Tokenizer, prompt: str | list[int]) -> Prompt:
        """Make the prompt for text or token ids.

        Raises:
            ApiError: the tokenizer cannot write the text.
        """
        turns = [turn for turn in self._latest_first() if turn.prompt.model == model]
        if not isinstance(prompt, str):
            for turn in turns:
                if prompt[: len(turn.tokens)] == turn.tokens:
                    return Prompt(model, prompt, "", follows=turn)
            return Prompt(model, prompt, "")
        try:
            for turn in turns:
                text = turn.text
                if turn.prompt.text and prompt.startswith(text) and _visible(tokenizer, turn):
                    rest = (
                        encode_continuation(tokenizer, prompt[len(text) :])
                        if prompt != text
                        else []
                    )
                    return Prompt(model, [*turn.tokens, *rest], prompt, follows=turn)
            return Prompt(model, tokenizer.encode(prompt), prompt)
        except Exception as error:
            raise _encoding_error(error, "prompt") from error

    def _longest_history(self, model: str, keys: tuple[str, ...]) -> Turn | None:
        """The recorded turn that covers the longest beginning of ``keys``; None: no turn does."""
        found: Turn | None = None
        for turn in self._latest_first():
            if turn.prompt.model != model or not turn.keys:
                continue
            longer = found is None or len(turn.keys) > len(found.keys)
            if longer and keys[: len(turn.keys)] == turn.keys:
                found = turn
        return found

    def ends(self) -> list[Turn]:
        """The last turns of the conversations: those that no other turn continues."""
        return [turn for turn in self.turns if turn not in self._continued]

    def _latest_first(self) -> list[Turn]:
        """The turns; those that nothing continues come first."""
        latest = list(reversed(self.turns))
        return sorted(latest, key=lambda turn: turn in self._continued)

    def trajectories(self, **fields: Any) -> list[Trajectory]:
        """Join turns that continue one another to trajectories.

        Where two turns continue the same one, the first continues its trajectory and the other
        starts a new one, so that no answer is trained twice. A change of temperature starts a new
        one too, since a trajectory has a single temperature.

        Args:
            fields: of every trajectory.
        """
        chains: list[list[Turn]] = []
        last: dict[Turn, list[Turn]] = {}
        for turn in self.turns:
            before = turn.prompt.follows
            chain = last.pop(before, None) if before is not None else None
            same = before is not None and (
                before.completion.temperature == turn.completion.temperature
            )
            if chain is None or not same:
                chain = []
                chains.append(chain)
            chain.append(turn)
            last[turn] = chain
        return [_trajectory(chain, fields) for chain in chains if _has_answer(chain)]


def _has_answer(chain: Sequence[Turn]) -> bool:
    return any(turn.completion.tokens for turn in chain)


def _trajectory(chain: Sequence[Turn], fields: dict[str, Any]) -> Trajectory:
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn in chain:
        written = turn.prompt.tokens[len(tokens) :]
        tokens += written
        mask += [0] * len(written)
        logprobs += [0.0] * len(written)
        versions += [NOT_SAMPLED] * len(written)
        tokens += turn.completion.tokens
        mask += [1] * len(turn.completion.tokens)
        logprobs += turn.completion.logprobs
        versions += turn.versions()
    end = chain[-1]
    return Trajectory(
        tokens=tokens,
        loss_mask=mask,
        logprobs=logprobs,
        versions=versions,
        model=end.prompt.model,
        finish_reason=end.completion.finish_reason,
        temperature=end.completion.temperature,
        **fields,
    )


def _render_messages(
    writer: ChatTokenizer,
    exact: Sequence[Message],
    sent: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    options: Mapping[str, Any] | None,
) -> str:
    """The messages as the template writes them, replies word for word where it can be."""
    more: dict[str, Any] = {"options": options} if options else {}
    try:
        return writer.render_chat(exact, tools or None, **more)
    except ConfigError:
        # Some templates refuse results of calls that no message has made.
        if exact == sent:
            raise
        return writer.render_chat(sent, tools or None, **more)


def _without_unencodable(message: Message, writer: ChatTokenizer) -> Message:
    """A message; what the tokenizer cannot write is left out of the results of tools."""
    if message["role"] != "tool":
        return message
    return {**message, "content": writer.writable(message["content"])}


def _visible(tokenizer: Tokenizer, turn: Turn) -> bool:
    """Whether the decoded answer shows its last token; an end token leaves no trace in text."""
    last = turn.tokens[-1]
    return last != tokenizer.eos_token_id and bool(tokenizer.decode([last]))


def _encoding_error(error: Exception, param: str) -> ApiError:
    if isinstance(error, ApiError):
        return error
    said = (
        str(error) if isinstance(error, ConfigError) else f"it cannot be encoded ({error!r:.200})"
    )
    return ApiError(422, said, param, "unwritable")
