"""Calls as Hermes and Qwen models write them: ``<tool_call>{"name": ..., ...}</tool_call>``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.agents.parsing import CallRule, ParsedReply, Parser, ToolCall
from plugrl.scenarios.parsers.calls import call_of, call_of_object, object_rule
from plugrl.scenarios.parsers.tags import TagsConfig

#: Templates write a line break between a tag and the object.
LINE = '"\\n"?'


@dataclass
class HermesConfig(TagsConfig):
    """Options of the parser ``hermes``."""

    opening: str = described("<tool_call>", "what a call begins with")
    closing: str = described("</tool_call>", "what a call ends with")


class HermesParser(Parser):
    """JSON objects between tags; several calls may stand in one reply.

    A call whose closing tag is missing reaches to the next opening tag or to the end, and is
    carried out when its JSON is whole.
    """

    Config: ClassVar[type] = HermesConfig

    def parse(self, text: str) -> ParsedReply:
        """Read the calls; the rest is content."""
        first, *parts = text.split(self.config.opening)
        content, calls = [first], []
        for part in parts:
            inside, closed, after = part.partition(self.config.closing)
            call, after = (call_of(inside), after) if closed else self._unclosed(inside)
            calls.append(call)
            content.append(after)
        return ParsedReply(content="".join(content).strip() if calls else text, calls=calls)

    def call_rule(self, name: str, arguments: str) -> CallRule:
        """An object with ``name`` and ``arguments`` between the tags."""
        rest = f"{LINE} {object_rule(name, arguments)} {LINE} {json.dumps(self.config.closing)}"
        return CallRule(self.config.opening, rest)

    def _unclosed(self, text: str) -> tuple[ToolCall, str]:
        """The call that ``text`` begins with, and what follows it."""
        try:
            value, end = json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            return ToolCall(error=f"{self.config.closing} is missing, and the call is no JSON"), ""
        return call_of_object(value), text.lstrip()[end:]
