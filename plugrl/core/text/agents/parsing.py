"""Parsers: from the text of a reply to what it says, thinks and asks tools for.

Models write malformed calls while they learn. What a parser cannot read is no failure of the
attempt: it becomes a call with an ``error``, which the model is told, and which is counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plugrl.core.component import Component
from plugrl.core.factory import make_component
from plugrl.core.plugins.user_code.error_location import failure_key, one_line, raised_at, warn_once
from plugrl.core.renamed_methods import RenamedMethods


@dataclass(slots=True)
class ToolCall:
    """One call that a reply asks for.

    Args:
        name: of the tool; "" means the only tool that there is.
        arguments: by the names of parameters, or in their order.
        error: why the call cannot be read; it is told to the model and nothing is called.
    """

    name: str = ""
    arguments: dict[str, Any] | list[Any] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class ParsedReply:
    """What a reply holds.

    Args:
        content: what is said, without reasoning and calls; the final answer when nothing is called.
        reasoning: what was thought before.
        calls: in the order in which they are written.
        error: what is wrong with the reply as a whole; it is told to the model.
    """

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class CallRule:
    """How one call is written, for grammars of replies that must call a tool.

    Args:
        opening: what every call begins with; "": nothing by which a call can be told.
        rest: what follows, in the Lark dialect of ``llguidance``.
    """

    opening: str
    rest: str


class Parser(RenamedMethods, Component, ABC):
    """Reads replies; subclass it for another way of writing tool calls or reasoning."""

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {"begun": "reply_prefix"}

    @abstractmethod
    def parse(self, text: str) -> ParsedReply:
        """Read ``text``. What is malformed becomes an ``error`` in the result.

        Parsers stand in a row: the next one reads the ``content`` of this one.
        """

    def reply_prefix(self, prompt: str) -> str:
        """What the end of ``prompt``, as the chat template wrote it, begins for the reply.

        It is put before the reply that :meth:`parse` reads. By default nothing.
        """
        return ""

    def call_rule(self, name: str, arguments: str) -> CallRule | None:
        """How a call of the tool ``name`` is written; None: it cannot be forced. By default so.

        Args:
            name: of the tool.
            arguments: the arguments as JSON, in the Lark dialect of ``llguidance``.
        """
        return None

    def reasoning_tags(self, prompt: str) -> tuple[str, str] | None:
        """What reasoning before a reply begins and ends with; None: there is none. By default so.

        Args:
            prompt: as the chat template wrote it. The first tag is "" where it has begun the
                reasoning.
        """
        return None


def make_parser(section: Mapping[str, Any]) -> Parser:
    """The parser of a section, resolved in this process.

    Raises:
        PlugrlError: there is no such parser, or it cannot be loaded.
    """
    parser: Parser = make_component("parser", section)
    return parser


def parse_reply(parsers: Sequence[Parser], text: str, prompt: str = "") -> ParsedReply:
    """Read ``text`` with one parser after the other.

    A parser that raises, or answers something else, gives a reply with an error.

    Args:
        parsers: in their order.
        text: of the reply.
        prompt: what it replies to, as the chat template wrote it; "": not known.
    """
    whole = ParsedReply(content=text)
    for parser in parsers:
        part = _run_parser(parser, whole.content, prompt)
        whole.content = part.content
        whole.reasoning = "\n".join(filter(None, (whole.reasoning, part.reasoning)))
        whole.calls += part.calls
        whole.error = whole.error or part.error
    return whole


def _run_parser(parser: Parser, text: str, prompt: str) -> ParsedReply:
    name = type(parser).__name__
    try:
        part = parser.parse(parser.reply_prefix(prompt) + text)
    except (Exception, SystemExit) as error:
        at = raised_at(error)
        fault = f"{name}.parse raised {one_line(error)}" + (f" ({at})" if at else "")
        key = failure_key(parser, error)
        warn_once(
            parser, key, f"a reply cannot be read: {fault}; the traceback is in log.txt", error
        )
        return ParsedReply(content=text, error="the reply cannot be read")
    if not isinstance(part, ParsedReply):
        raise TypeError(f"{name}.parse returned {type(part).__name__}; a ParsedReply is expected")
    return part
