"""Reasoning between tags: ``<think>...</think>``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.text.agents.parsing import ParsedReply, Parser
from plugrl.scenarios.parsers.tags import TagsConfig


@dataclass
class ThinkTagConfig(TagsConfig):
    """Options of the parser ``think_tag``."""

    opening: str = described("<think>", "what reasoning begins with")
    closing: str = described("</think>", "what reasoning ends with")


class ThinkTagParser(Parser):
    """Takes reasoning out of a reply.

    Templates often write the opening tag: where the prompt ends with it, the reply begins within
    reasoning. So does one that closes reasoning before it opens any. Without a closing tag the
    rest of the reply is reasoning and the reply has an error, so that nothing which was only
    thought counts as an answer or as a call.
    """

    Config: ClassVar[type] = ThinkTagConfig

    def reply_prefix(self, prompt: str) -> str:
        """The opening tag, where ``prompt`` ends with it."""
        opening: str = self.config.opening
        # Templates write line ends behind it.
        mark = opening.rstrip()
        return opening if mark and prompt.rstrip().endswith(mark) else ""

    def reasoning_tags(self, prompt: str) -> tuple[str, str]:
        """The two tags; the first is "" where ``prompt`` ends with it."""
        return "" if self.reply_prefix(prompt) else self.config.opening, self.config.closing

    def parse(self, text: str) -> ParsedReply:
        """Read reasoning and content."""
        opening, closing = self.config.opening, self.config.closing
        before, opened, rest = text.partition(opening)
        if rest.lstrip().startswith(opening):
            # The template opened it, and the model did too.
            rest = rest.lstrip().removeprefix(opening)
        if closing in before or not opened:
            thought, closed, after = text.partition(closing)
            return self._rest(thought, after) if closed else ParsedReply(content=text)
        thought, closed, after = rest.partition(closing)
        if not closed:
            error = f"the reasoning has no {closing}"
            return ParsedReply(content=before.strip(), reasoning=thought.strip(), error=error)
        return self._rest(thought, before + after)

    def _rest(self, thought: str, after: str) -> ParsedReply:
        """The rest of the reply, which may have more reasoning."""
        more = self.parse(after) if self.config.opening in after else ParsedReply(content=after)
        more.content = more.content.strip()
        more.reasoning = "\n".join(filter(None, (thought.strip(), more.reasoning)))
        return more
