"""Calls in brackets, for models of few characters: ``[12*7]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.agents.parsing import ParsedReply, Parser, ToolCall
from plugrl.scenarios.parsers.tags import TagsConfig


@dataclass
class BracketsConfig(TagsConfig):
    """Options of the parser ``brackets``."""

    tool: str = described("", 'the tool that is called; "": the only one that there is')


class BracketsParser(Parser):
    """What stands in brackets is the one argument, a text, of the one tool."""

    Config: ClassVar[type] = BracketsConfig

    def parse(self, text: str) -> ParsedReply:
        """Read the calls; the rest is content."""
        first, *parts = text.split(self.config.opening)
        content, calls = [first], []
        for part in parts:
            inside, closed, after = part.partition(self.config.closing)
            missing = "" if closed else f"{self.config.closing} is missing"
            calls.append(ToolCall(self.config.tool, [inside], missing))
            content.append(after)
        return ParsedReply(content="".join(content), calls=calls)
