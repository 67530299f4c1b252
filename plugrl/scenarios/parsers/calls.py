"""Tool calls that are JSON objects, as several parsers read them."""

from __future__ import annotations

import json
from typing import Any

from plugrl.core.text.agents.parsing import ToolCall


def call_of(text: str) -> ToolCall:
    """The call that a JSON object describes: ``name`` (or ``function``) with ``arguments``.

    Arguments may be an object, or text that holds one, as some interfaces write them. What is
    malformed gives a call with an error.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall(error=f"the call is no JSON: {getattr(error, 'msg', None) or 'too deep'}")
    return call_of_object(value)


def call_of_object(value: Any) -> ToolCall:
    """:func:`call_of` for an object that is read already."""
    if not isinstance(value, dict):
        return ToolCall(error="the call is no object with name and arguments")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("function"))
    if not isinstance(name, str) or not name:
        return ToolCall(error="the call has no name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return ToolCall(name, error=f"the arguments of {name} are no JSON")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall(name, error=f"the arguments of {name} are no object")
    return ToolCall(name, arguments)


def object_rule(name: str, arguments: str) -> str:
    """A call as an object with ``name`` and ``arguments``, in the Lark dialect of ``llguidance``.

    Args:
        name: of the tool.
        arguments: the rule of its arguments.
    """
    space = '" "?'
    key, value, own = (json.dumps(json.dumps(text)) for text in ("name", name, "arguments"))
    return (
        f'"{{" {space} {key} ":" {space} {value} "," {space} {own} ":" {space} {arguments} '
        f'{space} "}}"'
    )
