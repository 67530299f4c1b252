"""Messages to tokens: what is asked of tokenizers that have a chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of ``messages`` as the template writes it.

        ``options`` are further variables of the template, and given where there are any.
        """

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


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a whole text, with the token that ends one unless it does so already."""
    tokens = tokenizer.encode(text)
    return (
        tokens
        if tokens and tokens[-1] in end_tokens(tokenizer)
        else [
            *tokens,
            tokenizer.eos_token_id,
        ]
    )


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

    A last message of the assistant is one that it has begun, and that the answer goes on with.

    Raises:
        ConfigError: the messages are malformed, or the tokenizer has no template.
    """
    if not is_messages(value):
        return tokenizer.encode(str(value))
    messages = as_messages(value, "a prompt")
    chat = chat_tokenizer(tokenizer, model)
    begun = messages[-1]["content"] if messages[-1]["role"] == "assistant" else None
    if not isinstance(begun, str) or not begun.strip():
        return chat.apply_chat_template(messages)
    text = chat.render_chat(messages, add_generation_prompt=False)
    before, said, after = text.rpartition(begun.strip())
    trailing = begun[len(begun.rstrip()) :]
    kept = trailing if after.startswith(trailing) else ""
    return chat.encode_chat(before + said + kept)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Written messages as tokens.

    Attributes:
        tokens: of all messages, up to the last one that is learned.
        mask: 1 for the tokens of the assistant's replies, else 0.
        prompt: how many tokens stand before the messages that answer.
    """

    tokens: list[int]
    mask: list[int]
    prompt: int


def encode_conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    model: str,
    *,
    prompt: int = 0,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Conversation:
    """Messages by the chat template, and which of their tokens the assistant writes.

    Those are the tokens that the generation marks of the template enclose. Without marks, they
    begin after the generation prompt and end with the token that ends an answer.

    Args:
        tokenizer: of the model.
        messages: of the prompt, and those that answer it.
        model: its name, for messages.
        prompt: how many of the messages are the prompt; none of their tokens counts.
        tools: that the template is shown.

    Raises:
        ConfigError: there is no template or it fails, or without marks it does not write the
            messages one after the other.
    """
    chat = chat_tokenizer(tokenizer, model)
    find_marked: Callable[..., Any] | None = getattr(tokenizer, "encode_marked", None)
    marked = None if find_marked is None else find_marked(messages, tools)
    start = 0
    if marked is not None:
        tokens, mask = marked
        if prompt:
            start = _common(chat.apply_chat_template(messages[:prompt], tools), tokens)
            mask = [0] * start + mask[start:]
    else:
        tokens = chat.apply_chat_template(messages, tools, add_generation_prompt=False)
        mask = [0] * len(tokens)
        ends = end_tokens(tokenizer)
        for number in range(prompt, len(messages)):
            if number == prompt and prompt:
                start = _reply_start(chat, messages, number, tools, tokens)
            if messages[number]["role"] == "assistant":
                first = _reply_start(chat, messages, number, tools, tokens)
                last = _reply_end(chat, messages, number, tools, tokens, first, ends)
                mask[first:last] = [1] * (last - first)
    if tokens and mask[0]:
        # Nothing stands before the first token from which it could be predicted.
        mask = [0, *mask[1:]]
    kept = len(mask) - mask[::-1].index(1) if 1 in mask else len(mask)
    return Conversation(list(tokens[:kept]), mask[:kept], start)


def _reply_start(
    chat: ChatTokenizer,
    messages: Sequence[Message],
    number: int,
    tools: Sequence[Mapping[str, Any]] | None,
    tokens: Sequence[int],
) -> int:
    """Where a message begins whose template asks for it with a generation prompt."""
    if not number:
        return 0
    asked = chat.apply_chat_template(messages[:number], tools)
    common = _common(asked, tokens)
    if common < len(asked):
        # Some templates go on otherwise after a generation prompt than in a whole conversation.
        before = chat.apply_chat_template(messages[:number], tools, add_generation_prompt=False)
        if _common(before, tokens) < len(before):
            raise _unmarked(number)
    return common


def _reply_end(
    chat: ChatTokenizer,
    messages: Sequence[Message],
    number: int,
    tools: Sequence[Mapping[str, Any]] | None,
    tokens: Sequence[int],
    first: int,
    ends: Sequence[int],
) -> int:
    """Where a reply ends: with its end token, or else where the template has written it."""
    written = chat.apply_chat_template(messages[: number + 1], tools, add_generation_prompt=False)
    through = _common(written, tokens)
    # Some templates end a conversation as a whole, too.
    rewritten = any(token not in ends for token in written[through:])
    if rewritten:
        # Some templates write the last reply otherwise, such as with its thoughts.
        more = chat.apply_chat_template(messages[: number + 2], tools, add_generation_prompt=False)
        through = _common(more, tokens)
    found = next((i for i in range(first, through) if tokens[i] in ends), None)
    if found is None and rewritten:
        raise _unmarked(number)
    return through if found is None else found + 1


def _unmarked(number: int) -> ConfigError:
    return ConfigError(
        f"the chat template writes message {number} or those before it otherwise in the whole, so "
        "that its tokens are not known; mark what the assistant writes in "
        "source.tokenizer.chat_template of the model with {% generation %} and {% endgeneration %}"
    )


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))


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
