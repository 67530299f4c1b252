"""Messages to tokens: what is asked of tokenizers that have a chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from plugrl.core.chat_template import Message
from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.tokenizer import Tokenizer

#: Shows how a template ends a reply.
_EXCHANGE: list[Message] = [
    {"role": "user", "content": "0"},
    {"role": "assistant", "content": "\N{OBJECT REPLACEMENT CHARACTER}"},
]


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer with a chat template."""

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of ``messages`` as the template writes it."""

    def encode_chat(self, text: str, /) -> list[int]:
        """Token ids of text that a template wrote, with its special tokens."""

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Token ids of ``messages``: :meth:`render_chat`, then :meth:`encode_chat`."""

    def writable(self, text: str, /) -> str:
        """``text`` without what the tokenizer cannot write."""


def chat_tokenizer(tokenizer: Tokenizer, model: str) -> ChatTokenizer:
    """``tokenizer``, which must have a chat template.

    Raises:
        ConfigError: it has none.
    """
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer
    raise ConfigError(
        f"the tokenizer of model {model!r} ({type(tokenizer).__name__}) has no chat template; give "
        "prompts as text, or use a tokenizer with apply_chat_template, render_chat, encode_chat "
        "and writable"
    )


def end_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that each end an answer: the end token, and those that the model's folder adds."""
    more: Sequence[int] = getattr(tokenizer, "end_token_ids", ())
    return tuple(dict.fromkeys((tokenizer.eos_token_id, *more)))


def encode_continuation(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of ``text`` that follows other tokens: nothing is put before it."""
    own: Callable[[str], list[int]] | None = getattr(tokenizer, "encode_continuation", None)
    return list((own or tokenizer.encode)(text))


def encode_reply(tokenizer: Tokenizer, text: str, *, chat: bool) -> list[int]:
    """Token ids of a whole written answer, with the token that ends it.

    Args:
        tokenizer: of the model that learns from it.
        text: of the answer.
        chat: whether it answers messages. Of several end tokens it gets the one that the chat
            template writes after a reply, else ``eos_token_id``.
    """
    end = _end_of_turn(tokenizer) if chat else tokenizer.eos_token_id
    return [*encode_continuation(tokenizer, text), end]


def _end_of_turn(tokenizer: Tokenizer) -> int:
    ends = end_tokens(tokenizer)
    if len(ends) == 1 or not isinstance(tokenizer, ChatTokenizer):
        return tokenizer.eos_token_id
    try:
        text = tokenizer.render_chat(_EXCHANGE, add_generation_prompt=False)
    except ConfigError:
        return tokenizer.eos_token_id
    after = tokenizer.encode_chat(text.rpartition(_EXCHANGE[1]["content"])[2])
    return next((token for token in after if token in ends), tokenizer.eos_token_id)


def tokens_after_reply(tokenizer: Tokenizer, last: int, tokens: list[int]) -> list[int] | None:
    """What follows sampled tokens, without the end token that was sampled already.

    Args:
        tokenizer: of the tokens.
        last: the last sampled one.
        tokens: what a template writes after the text that was sampled.

    Returns:
        The tokens to add; None: the template ends the reply with another token.
    """
    if last != tokenizer.eos_token_id and tokenizer.decode([last]):
        return tokens
    return tokens[1:] if tokens[:1] == [last] else None


def answer_text(value: Any) -> str | None:
    """The text of an answer as data holds it; None: it is none.

    A number is its text. One message of the assistant, a list as conversational data sets have it,
    is what it says. Anything else would become text that nobody wrote, such as that of a list.
    """
    if isinstance(value, str):
        return value
    if is_messages(value):
        message = value[0] if len(value) == 1 else None
        if not isinstance(message, Mapping) or message.get("role") != "assistant":
            return None
        said = message.get("content")
        return said if isinstance(said, str) and not message.get("tool_calls") else None
    if value is None or isinstance(value, (Iterable, Mapping)) or value != value:
        return None
    return str(value)


def answer_fault(value: Any) -> str:
    """How messages call a value of which :func:`answer_text` makes nothing."""
    expected = "a text, a number or a list of one message of the assistant is expected"
    return f"{type(value).__name__}, no answer: {value!r:.60}; {expected}"


def is_messages(value: object) -> bool:
    """Whether a column holds a list of messages rather than text."""
    return isinstance(value, (list, tuple))


def as_messages(value: Any, what: str) -> list[Message]:
    """A list of messages, checked; text becomes one message of the user.

    Args:
        value: text, or messages with ``role`` and ``content``.
        what: how messages call it.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not is_messages(value) or not value:
        kind = "an empty list" if is_messages(value) else type(value).__name__
        raise ConfigError(f"{what} is {kind}; text or a list of messages is expected")
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(
                f"{what}: message {number} is {message!r:.60}; a mapping with role and content "
                "is expected"
            )
    # Columns of Parquet files hold every field that any of their messages has.
    return [{k: v for k, v in m.items() if v is not None or k == "content"} for m in value]


def encode_prompt(tokenizer: Tokenizer, value: Any, model: str = "policy") -> list[int]:
    """Token ids of a prompt: text as the tokenizer begins one, messages by the chat template.

    Raises:
        ConfigError: the messages are malformed, or the tokenizer has no template.
    """
    if not is_messages(value):
        return tokenizer.encode(str(value))
    messages = as_messages(value, "a prompt")
    return chat_tokenizer(tokenizer, model).apply_chat_template(messages)


def encode_question(
    tokenizer: Any, question: str, model: str, *, chat: bool = True, system_prompt: str = ""
) -> list[int]:
    """Token ids of a question that plugrl asks itself, such as one to a judge.

    Args:
        tokenizer: of the model; characters that it cannot write are left out.
        question: as text.
        model: its name, for messages.
        chat: as a message of the user by the model's chat template; else as text.
        system_prompt: what the model is told first, by chat; empty: nothing.

    Raises:
        ConfigError: the tokenizer has no template.
    """
    question = tokenizer.writable(question) if hasattr(tokenizer, "writable") else question
    told = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages = [*told, {"role": "user", "content": question}]
    return encode_prompt(tokenizer, messages if chat else question, model)
