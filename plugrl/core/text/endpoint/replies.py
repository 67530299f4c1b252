"""From the tokens of an answer to what a client is sent: text, calls, and pieces of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plugrl.core.chat_template import Message
from plugrl.core.text.agents.parsing import ParsedReply, Parser, ToolCall, parse_reply
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.tokenizer import Tokenizer

#: A stream has at most so many pieces of text.
_MOST_PIECES = 64


@dataclass(frozen=True)
class Piece:
    """Some tokens of an answer, the place of the first of them, and the text that they add."""

    text: str
    start: int
    tokens: list[int]


@dataclass(frozen=True)
class Choice:
    """One answer in the form that the client gets.

    Attributes:
        text: what is said; calls and reasoning, if they were looked for, are left out.
        calls: in the form of OpenAI's ``tool_calls``.
        finish: why it ended.
        token_texts: the text of each token alone.
        pieces: the text in order, for a stream.
        versions: the policy version of each token.
        prompt: tokens of the prompt.
        unenforced: parameters of the request that were accepted and not enforced.
        top_texts: the most probable tokens of each place, as text, and their log-probabilities.
    """

    text: str
    finish: str
    prompt: list[int]
    completion: Completion
    versions: list[int]
    token_texts: list[str]
    pieces: list[Piece]
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    unenforced: list[str] = field(default_factory=list)
    top_texts: list[list[tuple[str, float]]] = field(default_factory=list)

    @property
    def message(self) -> Message:
        """The message of the assistant."""
        message: Message = {"role": "assistant", "content": self.text, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["content"] = self.text or None
            message["tool_calls"] = self.calls
        return message


def split_reply(
    parsers: Sequence[Parser],
    text: str,
    prompt: str,
    tools: Sequence[Mapping[str, Any]],
    serial: int,
) -> tuple[str, str, list[dict[str, Any]]]:
    """Content, reasoning and calls of a reply.

    Reasoning without an end is no content. Another reply in which anything is malformed is all
    content, word for word: clients have no way to be told of half a call.

    Args:
        parsers: read the reply, one after the other.
        text: the reply.
        prompt: what it replies to, as the chat template wrote it.
        tools: that it may call.
        serial: a number that no other reply of the session has, for the ids of calls.
    """
    reply = parse_reply(parsers, text, prompt)
    calls = [
        _call(call, tools, f"c{serial % 100_000:05d}{i:03d}") for i, call in enumerate(reply.calls)
    ]
    if None in calls or (reply.error and (calls or not reply.reasoning)):
        return text, "", []
    return _content(reply), reply.reasoning, [call for call in calls if call is not None]


def _content(reply: ParsedReply) -> str:
    return reply.content if not reply.calls or reply.content.strip() else ""


def _call(
    call: ToolCall, tools: Sequence[Mapping[str, Any]], identity: str
) -> dict[str, Any] | None:
    """A call as clients take it; None: it is malformed."""
    functions = [tool["function"] for tool in tools]
    name = call.name or (functions[0]["name"] if len(functions) == 1 else "")
    arguments: Any = call.arguments
    if call.error or not name:
        return None
    if not isinstance(arguments, Mapping):
        own: Mapping[str, Any] = next((f for f in functions if f["name"] == name), {})
        names = list((own.get("parameters") or {}).get("properties") or ())
        if len(arguments) > len(names):
            return None
        arguments = dict(zip(names, arguments, strict=False))
    try:
        text = json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """``text`` up to the first of the strings that end an answer."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(places)] if places else text


def token_texts(tokenizer: Tokenizer, completion: Completion) -> list[str]:
    """The text of each token alone; special ones have none."""
    return [tokenizer.decode([token]) for token in completion.tokens]


def top_texts(tokenizer: Tokenizer, completion: Completion) -> list[list[tuple[str, float]]]:
    """The most probable tokens of each place as text; empty where they were not asked for."""
    return [
        [(tokenizer.decode([token]), logprob) for token, logprob in place]
        for place in completion.top_logprobs or ()
    ]


def pieces(tokenizer: Tokenizer, completion: Completion, text: str) -> list[Piece]:
    """The answer in pieces whose texts are ``text`` together.

    A character of several tokens comes with the last of them. Where ``text`` is not what the tokens
    say from its beginning, there is one piece.
    """
    tokens = completion.tokens
    step = max(1, -(-len(tokens) // _MOST_PIECES))
    found: list[Piece] = []
    start, sent = 0, 0
    for end in [*range(step, len(tokens), step), len(tokens)]:
        said = tokenizer.decode(tokens[:end])
        last = end == len(tokens)
        if last or (said and not said.endswith("\ufffd")):
            if not last and not text.startswith(said[: len(text)]):
                return [Piece(text, 0, tokens)]
            upto = len(text) if last else min(len(said), len(text))
            found.append(Piece(text[sent:upto], start, tokens[start:end]))
            start, sent = end, upto
    return found
