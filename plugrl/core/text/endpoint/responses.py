"""OpenAI's interface of responses, for text and calls of functions, over that of chats.

Nothing is stored: each request has the whole conversation as its input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plugrl.core.text.endpoint import answers
from plugrl.core.text.endpoint.answers import AnswerHead
from plugrl.core.text.endpoint.body import Body
from plugrl.core.text.endpoint.faults import invalid, unsupported
from plugrl.core.text.endpoint.forms import AnswerForm, read_response_format, read_tool_choice
from plugrl.core.text.endpoint.messages import read_messages, read_tools
from plugrl.core.text.endpoint.replies import Choice
from plugrl.core.text.endpoint.requests import (
    MOST_TOKENS,
    ChatRequest,
    checked_effort,
    read_common,
    read_template,
    read_top_logprobs,
)
from plugrl.core.text.inference.tokenizer import Tokenizer

#: Parameters with the values that change nothing.
_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((), "nothing is stored; send the whole conversation as input"),
    "conversation": ((), "nothing is stored; send the whole conversation as input"),
    "prompt": ((), "prompts are not stored"),
    "background": ((False,), "answers are waited for"),
    "truncation": (("disabled",), "prompts are not shortened"),
    "max_tool_calls": ((), "tools are called by the client"),
}
_LOGPROBS = "message.output_text.logprobs"
#: What a client may ask to be sent besides; of encrypted reasoning there is none.
_INCLUDE = ("reasoning.encrypted_content", _LOGPROBS)


@dataclass(frozen=True)
class ResponseRequest(ChatRequest):
    """A request for ``/responses``; ``echo`` is what of it the answer has again."""

    prompted_by: ClassVar[str] = "input"

    echo: dict[str, Any] = field(default_factory=dict)


def read_response(data: bytes) -> ResponseRequest:
    """Read the body of a request for ``/responses``.

    Raises:
        ApiError: it is malformed, or asks for what is not supported.
    """
    body = Body(data)
    instructions = body.text("instructions")
    told = [] if instructions is None else [{"role": "system", "content": instructions}]
    messages = read_messages([*told, *_messages(body.take("input"))], "input")
    own_tools = body.take("tools") or []
    listed = isinstance(own_tools, list)
    tools = read_tools([_chat_tool(tool) for tool in own_tools] if listed else own_tools)
    choice = body.take("tool_choice")
    text, reasoning = (_object(body, name) for name in ("text", "reasoning"))
    parallel = body.flag("parallel_tool_calls", absent=True)
    form = AnswerForm(
        read_response_format(text.get("format"), "text.format"),
        read_tool_choice(choice, tools),
        parallel,
    )
    for name, (values, reason) in _NEUTRAL.items():
        body.neutral(name, *values, reason=reason)
    include = body.take("include") or []
    if not isinstance(include, list) or not all(each in _INCLUDE for each in include):
        raise unsupported("include", f"include can be {' and '.join(_INCLUDE)}")
    body.take("prompt_cache_retention")
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise invalid("reasoning.effort", "reasoning.effort must be text")
    limit = body.whole("max_output_tokens", 1, MOST_TOKENS)
    common = read_common(body, limit, 1, ("include_usage", "include_obfuscation"))
    common["logprobs"] = _LOGPROBS in include
    common["sampled"] |= read_top_logprobs(body, common["logprobs"], f"include: {_LOGPROBS}")
    template = read_template(body)
    metadata = body.take("metadata")
    body.finish()
    ignored = [
        f"reasoning.{name}" for name in ("summary", "generate_summary") if reasoning.get(name)
    ]
    ignored += ["text.verbosity"] if text.get("verbosity") not in (None, "medium") else []
    sampled = common["sampled"]
    echo = {
        "instructions": instructions,
        "max_output_tokens": limit,
        "metadata": metadata or {},
        "parallel_tool_calls": parallel,
        "reasoning": {"effort": effort, "summary": None},
        "temperature": sampled.get("temperature"),
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": choice or "auto",
        "tools": own_tools,
        "top_p": sampled.get("top_p"),
    }
    return ResponseRequest(
        **common, messages=messages, tools=tools, form=form, template=template,
        effort=checked_effort(effort), ignored=ignored, echo=echo,
    )  # fmt: skip


def _object(body: Body, name: str) -> Mapping[str, Any]:
    """A parameter that is an object; empty where it is not there."""
    value = body.take(name) or {}
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object")
    return value


def _chat_tool(tool: Any) -> Any:
    """A tool in the form that chats have."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _messages(value: Any) -> list[dict[str, Any]]:
    """The items of an input as messages of a chat."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid("input", "input must be text, or a list of items")
    messages: list[dict[str, Any]] = []
    # Reasoning, text and calls of one reply are items of their own.
    reply: dict[str, Any] | None = None
    for number, item in enumerate(value):
        where = f"input[{number}]"
        kind = item.get("type", "message") if isinstance(item, dict) else ""
        role = item.get("role") if kind == "message" else None
        if role == "assistant" or kind in ("function_call", "reasoning"):
            if reply is None or _is_complete(reply, kind):
                reply = {"role": "assistant"}
                messages.append(reply)
            _add_to_reply(reply, item, kind, where)
            continue
        reply = None
        if kind == "message":
            messages.append({"role": role, "content": _text(item.get("content"), where)})
        elif kind == "function_call_output":
            output = _text(item.get("output"), where)
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        else:
            raise unsupported(
                where, f"{where} is of type {str(kind)[:64]!r}, which is not supported"
            )
    return [m for m in messages if m.keys() - {"role", "reasoning_content"}]


def _is_complete(reply: Mapping[str, Any], kind: str) -> bool:
    """Whether an item of ``kind`` belongs to another reply: calls come last, and text once."""
    return ("tool_calls" in reply and kind != "function_call") or (
        "content" in reply and kind == "message"
    )


def _add_to_reply(reply: dict[str, Any], item: Mapping[str, Any], kind: str, where: str) -> None:
    """Add the text, the reasoning or the call of an item to the message of the reply."""
    if kind == "message":
        reply["content"] = _text(item.get("content"), where)
    elif kind == "reasoning":
        parts = [*(item.get("summary") or []), *(item.get("content") or [])]
        thought = _text(parts, where)
        if thought:
            reply["reasoning_content"] = thought
    else:
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id") or "", "type": "function", "function": function}
        reply.setdefault("tool_calls", []).append(call)


_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def _text(value: Any, where: str) -> Any:
    """The text of a content, which may have parts."""
    if not isinstance(value, list):
        return value
    parts = [part if isinstance(part, dict) else {} for part in value]
    texts: list[Any] = [p.get("refusal" if p.get("type") == "refusal" else "text") for p in parts]
    known = all(p.get("type") in (*_TEXTS, "refusal") for p in parts)
    if not known or not all(isinstance(text, str) for text in texts):
        raise invalid(where, f"{where} has a part that is no text")
    return "".join(texts)


def answer_body(
    head: AnswerHead, asked: ResponseRequest, choices: Sequence[Choice], spell: Tokenizer
) -> dict[str, Any]:
    """A whole answer."""
    (choice,) = choices
    return _response(head, asked, choice, _items(head, asked, choice), spell)


def _response(
    head: AnswerHead,
    asked: ResponseRequest,
    choice: Choice,
    items: Sequence[Mapping[str, Any]],
    spell: Tokenizer,
    status: str = "",
) -> dict[str, Any]:
    """The object of an answer; with a ``status``, as it is before the answer is there."""
    cut = choice.finish == "length"
    counts = answers.usage(asked, [choice])
    usage = {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }
    told: dict[str, Any] = {
        "id": f"resp_{head.identity}",
        "object": "response",
        "created_at": head.created,
        "status": status or ("incomplete" if cut else "completed"),
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut and not status else None,
        "model": asked.model,
        "output": list(items),
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": None if status else usage,
        "user": None,
        **asked.echo,
    }
    if choice.unenforced:
        told["unenforced"] = choice.unenforced
    return told if status else told | answers.token_fields(asked, choice, spell)


def _items(head: AnswerHead, asked: ResponseRequest, choice: Choice) -> list[dict[str, Any]]:
    """What the model said: reasoning, text and calls."""
    items: list[dict[str, Any]] = []
    status = "incomplete" if choice.finish == "length" else "completed"
    if choice.reasoning:
        content = [{"type": "reasoning_text", "text": choice.reasoning}]
        own = {"type": "reasoning", "summary": [], "content": content}
        items.append({"id": f"rs_{head.identity}", **own, "status": status})
    if choice.text or not choice.calls:
        logprobs = answers.logprobs(asked, choice, choice.completion.tokens) or {}
        part = {"type": "output_text", "text": choice.text, "annotations": []}
        part["logprobs"] = logprobs.get("content", [])
        own = {"type": "message", "role": "assistant", "content": [part]}
        items.append({"id": f"msg_{head.identity}", **own, "status": status})
    for number, call in enumerate(choice.calls):
        own = {"type": "function_call", "call_id": call["id"], **call["function"]}
        items.append({"id": f"fc_{head.identity}_{number}", **own, "status": status})
    return items


def events(
    head: AnswerHead, asked: ResponseRequest, choices: Sequence[Choice], spell: Tokenizer
) -> Iterator[str]:
    """The events of a stream, one after the other."""
    (choice,) = choices
    for number, (kind, values) in enumerate(_events(head, asked, choice, spell)):
        value = {"type": kind, "sequence_number": number, **values}
        yield f"event: {kind}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"


def _events(
    head: AnswerHead, asked: ResponseRequest, choice: Choice, spell: Tokenizer
) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = _response(head, asked, choice, [], spell, "in_progress")
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    items = _items(head, asked, choice)
    for place, item in enumerate(items):
        at = {"output_index": place}
        called = item["type"] == "function_call"
        empty: dict[str, Any] = {"arguments": ""} if called else {"content": []}
        first = {**item, **empty, "status": "in_progress"}
        yield "response.output_item.added", {**at, "item": first}
        own = {**at, "item_id": item["id"]}
        if item["type"] == "message":
            yield from _text_events(asked, choice, own, item["content"][0])
        elif item["type"] == "function_call":
            said = item["arguments"]
            yield "response.function_call_arguments.delta", {**own, "delta": said}
            done = {**own, "name": item["name"], "arguments": said}
            yield "response.function_call_arguments.done", done
        yield "response.output_item.done", {**at, "item": item}
    whole = _response(head, asked, choice, items, spell)
    yield f"response.{whole['status']}", {"response": whole}


def _text_events(
    asked: ResponseRequest, choice: Choice, own: Mapping[str, Any], part: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    own = {**own, "content_index": 0}
    yield "response.content_part.added", {**own, "part": {**part, "text": "", "logprobs": []}}
    for piece in choice.pieces:
        told = answers.logprobs(asked, choice, piece.tokens, piece.start) or {}
        logprobs = {"logprobs": told.get("content", [])}
        yield "response.output_text.delta", {**own, "delta": piece.text, **logprobs}
    logprobs = {"logprobs": part["logprobs"]}
    yield "response.output_text.done", {**own, "text": part["text"], **logprobs}
    yield "response.content_part.done", {**own, "part": part}
