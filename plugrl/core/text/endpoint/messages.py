"""Messages and tools as clients send them, in the one form that chat templates take.

Clients send what they got in more than one way: content as text or in parts, arguments of calls as
JSON text, keys that are null. Two messages that mean the same are equal by :func:`key_of`.
"""

from __future__ import annotations

import json
from typing import Any

from plugrl.core.chat_template import Message
from plugrl.core.text.endpoint.faults import ApiError, invalid

_ROLES = ("assistant", "developer", "system", "tool", "user")
#: Keys of messages with the kind of their values; others are refused.
_KEYS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
#: What answers of other servers have and means nothing here.
_EMPTY = {"refusal", "audio", "annotations", "function_call", "reasoning", "reasoning_details"}


def read_messages(value: Any, param: str = "messages") -> list[Message]:
    """The messages of a request, which are in the parameter ``param``.

    Raises:
        ApiError: they are malformed, or hold more than text and calls.
    """
    if not isinstance(value, list) or not value:
        raise invalid(param, f"{param} must be a list of at least one message")
    return [_message(message, f"{param}[{number}]") for number, message in enumerate(value)]


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        known = ", ".join(_ROLES)
        raise invalid(where, f"{where} must be an object with a role: {known}")
    given = {key: each for key, each in value.items() if each is not None}
    for key in set(given) - _KEYS:
        if key not in _EMPTY or given[key]:
            raise invalid(
                f"{where}.{key}"[:80], f"{where} has {key[:64]!r}, which is not supported"
            )
    # Templates know the older name of it.
    role = "system" if value["role"] == "developer" else value["role"]
    message: Message = {"role": role, "content": _content(given.get("content"), where)}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if key in given:
            message[key] = _text(given[key], f"{where}.{key}")
    calls = given.get("tool_calls")
    if calls:
        if value["role"] != "assistant" or not isinstance(calls, list):
            raise invalid(
                where, f"{where}.tool_calls must be a list, in a message of the assistant"
            )
        message["tool_calls"] = [_call(call, f"{where}.tool_calls") for call in calls]
    elif "content" not in given:
        raise invalid(where, f"{where} has no content")
    return message


def _content(value: Any, where: str) -> str:
    if not isinstance(value, list):
        return "" if value is None else _text(value, f"{where}.content")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise invalid(f"{where}.content", f"{where}.content has a part that is no text")
        texts.append(_text(part.get("text"), f"{where}.content"))
    return "".join(texts)


def _call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(where, f"{where} must hold calls with a function and its name")
    call = {"name": _text(function["name"], where), "arguments": arguments_of(function, where)}
    return {"id": _text(value.get("id", ""), where), "type": "function", "function": call}


def arguments_of(function: dict[str, Any], where: str) -> Any:
    """The arguments of a call as an object, which templates write; text that is none stays."""
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(_text(arguments, where))
    except (ValueError, RecursionError):
        return arguments


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(where, f"{where} must be text")
    return checked_text(value, where)


def checked_text(value: str, where: str) -> str:
    """``value``, which must be text that can be written.

    Raises:
        ApiError: it holds half of a surrogate pair.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ApiError(422, f"{where} holds a lone surrogate, which is no text", where) from None
    return value


def read_tools(value: Any) -> list[dict[str, Any]]:
    """The tools of a request, as templates take them.

    Raises:
        ApiError: one is no function, or has the name of another.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid("tools", "tools must be a list of functions")
    names: set[str] = set()
    for number, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise invalid(f"tools[{number}]", f"tools[{number}] must be of type function")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise invalid(f"tools[{number}]", f"tools[{number}] has no name")
        if function["name"] in names:
            raise invalid(
                f"tools[{number}]",
                f"tools[{number}] has the name of another: {function['name']!r:.64}",
            )
        names.add(function["name"])
        if not isinstance(function.get("parameters") or {}, dict):
            raise invalid(f"tools[{number}]", f"tools[{number}].parameters must be a schema")
    return value


def key_of(message: Message) -> str:
    """A text that messages have in common which clients mean as the same.

    Ids of calls and the text beside calls are left out, since some clients write them anew.
    """
    calls = [
        [c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", ())
    ]
    said = [message.get(key) or "" for key in ("role", "name", "tool_call_id")]
    content = "" if calls else (message.get("content") or "").strip()
    return json.dumps([said, content, calls], sort_keys=True)
