"""The contract of parsers.

Run it with ``--plugrl-parser NAME``, or subclass :class:`ParserContract` with an attribute
``plugrl_parser``. A parser gives as ``conformance``: ``config``, its section; ``text``, a reply
that it reads; ``calls``, the names of the tools which that reply asks for, and ``reasoning`` or
``content``, what it says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from plugrl.core.text.agents.parsing import ParsedReply, Parser, ToolCall
from plugrl.testing.contract import ComponentContract, needed
from plugrl.testing.hostile import HOSTILE

#: What looks like the beginning of a call, or of many.
UNFINISHED = (
    "<tool_call>",
    "</tool_call><tool_call>",
    "<think><think></think>",
    '{"name": 1, "arguments": []}',
    "[f(), f(",
    "[" * 2000,
    '{"a":' * 2000,
    "f(" * 2000,
)
#: Processor time for one hostile reply of 20,000 letters.
SECONDS = 2.0


class ParserContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_parser``."""

    kind = "parser"
    defaults: ClassVar[Mapping[str, Any]] = {
        "text": None,
        "calls": None,
        "reasoning": None,
        "content": None,
    }

    def validate(self, reply: object) -> ParsedReply:
        """What a parser may answer."""
        assert isinstance(reply, ParsedReply)
        assert all(isinstance(text, str) for text in (reply.content, reply.reasoning, reply.error))
        for call in reply.calls:
            assert isinstance(call, ToolCall)
            assert isinstance(call.name, str)
            assert isinstance(call.arguments, (dict, list))
            json.dumps(call.arguments)
        return reply

    def test_it_reads_what_it_is_for(
        self, make: Callable[[], Parser], example: Mapping[str, Any]
    ) -> None:
        needed(example, "text")
        reply = self.validate(make().parse(example["text"]))
        assert not reply.error
        assert not any(call.error for call in reply.calls)
        if example["calls"] is not None:
            assert [call.name for call in reply.calls] == example["calls"]
        for part in ("reasoning", "content"):
            if example[part] is not None:
                assert getattr(reply, part) == example[part]

    @pytest.mark.parametrize("text", [*HOSTILE, *UNFINISHED])
    def test_any_reply_is_read(self, make: Callable[[], Parser], text: str) -> None:
        # Errors belong into the reply: the model is told, and training goes on.
        self.validate(make().parse(text))

    def test_a_reply_may_end_anywhere(
        self, make: Callable[[], Parser], example: Mapping[str, Any]
    ) -> None:
        needed(example, "text")
        parser = make()
        for end in range(len(example["text"])):
            self.validate(parser.parse(example["text"][:end]))

    def test_plain_words_stay_what_is_said(self, make: Callable[[], Parser]) -> None:
        reply = self.validate(make().parse("The sum is 4."))
        assert reply.content.strip() == "The sum is 4."
        assert not reply.calls

    def test_equal_replies_are_read_alike(
        self, make: Callable[[], Parser], example: Mapping[str, Any]
    ) -> None:
        parser = make()
        for text in (example["text"] or "x", "other", example["text"] or "x"):
            assert parser.parse(text) == make().parse(text), "what it read before changes a reply"

    def test_long_replies_take_no_longer_than_they_are(
        self, make: Callable[[], Parser], example: Mapping[str, Any]
    ) -> None:
        begin = (example["text"] or "<tool_call>")[:12]
        parser, started = make(), time.process_time()
        self.validate(parser.parse(begin * (20_000 // len(begin))))
        assert time.process_time() - started < SECONDS


class TestParser(ParserContract):
    """The contract for every ``--plugrl-parser``."""

    __test__ = True
