"""Calls that are a whole reply of JSON, bare or in a fenced block."""

from __future__ import annotations

import json
import re
from typing import Any

from plugrl.core.text.agents.parsing import CallRule, ParsedReply, Parser, ToolCall
from plugrl.scenarios.parsers.calls import call_of_object, object_rule

_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_KEYS = frozenset({"name", "function", "arguments", "parameters", "tool_calls"})


class JsonParser(Parser):
    """An object with ``name`` and ``arguments``, a list of them, or ``{"tool_calls": [...]}``.

    JSON of another kind is content: an answer may be JSON too.
    """

    def call_rule(self, name: str, arguments: str) -> CallRule:
        """One object with ``name`` and ``arguments``, which is the whole reply."""
        return CallRule("", object_rule(name, arguments))

    def parse(self, text: str) -> ParsedReply:
        """Read the calls of fenced blocks, or of the reply as a whole."""
        calls: list[ToolCall] = []

        def take(match: re.Match[str]) -> str:
            found = _calls(match[1])
            calls.extend(found or ())
            return match[0] if found is None else ""

        content = _FENCE.sub(take, text)
        if calls:
            return ParsedReply(content=content.strip(), calls=calls)
        found = _calls(text)
        return ParsedReply(content=text) if found is None else ParsedReply(calls=found)


def _calls(text: str) -> list[ToolCall] | None:
    """The calls that ``text`` is; None: it is something else."""
    text = text.strip()
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not text.startswith(("{", "[")) or not re.search(r'"(name|arguments)"\s*:', text):
            return None
        return [ToolCall(error=f"the call is no JSON: {getattr(error, 'msg', None) or 'too deep'}")]
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(v, dict) and v.keys() & _KEYS for v in values):
        return None
    return [call_of_object(each) for each in values]
