"""The JSON of answers, whole and in pieces, as OpenAI's interface describes it.

Token ids and log-probabilities of prompts have the names of vLLM: ``prompt_token_ids``,
``token_ids`` and ``prompt_logprobs``. ``weight_version`` is the policy version of an answer, and
``weight_versions`` that of each token where it changed on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plugrl.core.text.endpoint.replies import Choice, Piece
from plugrl.core.text.endpoint.requests import ChatRequest, EndpointRequest
from plugrl.core.text.inference.tokenizer import Tokenizer


@dataclass(frozen=True)
class AnswerHead:
    """What all parts of an answer say: id and time."""

    identity: str
    created: int

    def fields(self, asked: EndpointRequest, kind: str) -> dict[str, Any]:
        """The fields of one part."""
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": asked.model,
        }


def answer_body(
    head: AnswerHead, asked: EndpointRequest, choices: Sequence[Choice], spell: Tokenizer
) -> dict[str, Any]:
    """A whole answer."""
    chat = isinstance(asked, ChatRequest)
    told = []
    for index, choice in enumerate(choices):
        own: dict[str, Any] = {"index": index, "finish_reason": choice.finish}
        own |= {"message": choice.message} if chat else {"text": choice.text}
        own["logprobs"] = logprobs(asked, choice, choice.completion.tokens)
        own |= _token_fields(asked, choice)
        if not chat:
            own |= _prompt_fields(asked, choice, spell)
        told.append(own)
    answer = head.fields(asked, "chat.completion" if chat else "text_completion")
    answer |= {"choices": told, "usage": usage(asked, choices)}
    if choices[0].unenforced:
        answer["unenforced"] = choices[0].unenforced
    return answer | (_prompt_fields(asked, choices[0], spell) if chat else {})


def usage(asked: EndpointRequest, choices: Sequence[Choice]) -> dict[str, int]:
    """How many tokens were read and written; a prompt counts once."""
    read = sum(len(choice.prompt) for choice in choices[:: asked.n])
    written = sum(len(choice.completion.tokens) for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def events(
    head: AnswerHead, asked: EndpointRequest, choices: Sequence[Choice], spell: Tokenizer
) -> Iterator[str]:
    """The events of a stream, one after the other."""
    chat = isinstance(asked, ChatRequest)
    kind = "chat.completion.chunk" if chat else "text_completion"
    for index, choice in enumerate(choices):
        for number, part in enumerate(
            _chat_parts(asked, choice) if chat else _parts(asked, choice)
        ):
            chunk = head.fields(asked, kind) | {"choices": [{"index": index, **part}]}
            if number == 0 and chat and index == 0:
                chunk |= _prompt_fields(asked, choice, spell)
            elif number == 0 and not chat:
                chunk["choices"][0] |= _prompt_fields(asked, choice, spell)
            if number == 0 and choice.unenforced:
                chunk["unenforced"] = choice.unenforced
            yield _event(chunk)
    if asked.usage:
        yield _event(head.fields(asked, kind) | {"choices": [], "usage": usage(asked, choices)})
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _chat_parts(asked: EndpointRequest, choice: Choice) -> Iterator[dict[str, Any]]:
    start: dict[str, Any] = {"role": "assistant", "content": ""}
    if choice.reasoning:
        start["reasoning_content"] = choice.reasoning
    yield {"delta": start, "finish_reason": None, "logprobs": None}
    for piece in choice.pieces:
        yield {
            "delta": {"content": piece.text},
            "finish_reason": None,
            **_piece(asked, choice, piece),
        }
    if choice.calls:
        calls = [{"index": number, **call} for number, call in enumerate(choice.calls)]
        yield {"delta": {"tool_calls": calls}, "finish_reason": None, "logprobs": None}
    yield {"delta": {}, "finish_reason": choice.finish, "logprobs": None, **_version(choice)}


def _parts(asked: EndpointRequest, choice: Choice) -> Iterator[dict[str, Any]]:
    for piece in choice.pieces:
        yield {"text": piece.text, "finish_reason": None, **_piece(asked, choice, piece)}
    yield {"text": "", "finish_reason": choice.finish, "logprobs": None, **_version(choice)}


def _piece(asked: EndpointRequest, choice: Choice, piece: Piece) -> dict[str, Any]:
    told: dict[str, Any] = {"logprobs": logprobs(asked, choice, piece.tokens, piece.start)}
    return told | ({"token_ids": piece.tokens} if asked.return_token_ids else {})


def _token_fields(asked: EndpointRequest, choice: Choice) -> dict[str, Any]:
    ids = {"token_ids": choice.completion.tokens} if asked.return_token_ids else {}
    return {**_version(choice), **ids}


def token_fields(asked: EndpointRequest, choice: Choice, spell: Tokenizer) -> dict[str, Any]:
    """What an answer of one choice says of its tokens and of those of the prompt."""
    return _token_fields(asked, choice) | _prompt_fields(asked, choice, spell)


def _version(choice: Choice) -> dict[str, Any]:
    told: dict[str, Any] = {"weight_version": choice.completion.version}
    if choice.completion.versions is not None:
        told["weight_versions"] = choice.versions
    return told


def _prompt_fields(asked: EndpointRequest, choice: Choice, spell: Tokenizer) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if asked.return_token_ids:
        told["prompt_token_ids"] = choice.prompt
    given = choice.completion.prompt_logprobs
    if asked.prompt_logprobs and given is not None:
        told["prompt_logprobs"] = [
            {str(token): {"logprob": value, "rank": None, "decoded_token": spell.decode([token])}}
            if place
            else None
            for place, (token, value) in enumerate(zip(choice.prompt, given, strict=True))
        ]
    return told


def logprobs(
    asked: EndpointRequest, choice: Choice, tokens: Sequence[int], start: int = 0
) -> dict[str, Any] | None:
    """Log-probabilities of some tokens of an answer, in the form of its sort."""
    if not asked.logprobs:
        return None
    end = start + len(tokens)
    texts = choice.token_texts[start:end]
    values = choice.completion.logprobs[start:end]
    tops = choice.top_texts[start:end] or [[] for _ in tokens]
    if isinstance(asked, ChatRequest):
        content = [
            _entry(text, value) | {"top_logprobs": [_entry(*each) for each in top]}
            for text, value, top in zip(texts, values, tops, strict=True)
        ]
        return {"content": content, "refusal": None}
    offset, offsets = sum(map(len, choice.token_texts[:start])), []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": values,
        "top_logprobs": [dict(top) for top in tops] if choice.top_texts else None,
        "text_offset": offsets,
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    """A token with its log-probability, as chats have it."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
