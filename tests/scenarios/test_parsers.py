"""Parsers of replies: what they find, and that nothing malformed is lost or raises."""

# ruff: noqa: E501
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugrl import ParsedReply, Parser, ToolCall
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.agents.parsing import parse_reply


def parser(name, **options):
    registry = default_registry()
    return registry.load(registry.resolve("parser", name))(options)


NAMES = ["hermes", "json", "pythonic", "brackets", "think_tag"]
ADD = '{"name": "add", "arguments": {"a": 1}}'
CALL = ToolCall("add", {"a": 1})
OPEN, CLOSE = "<tool_call>", "</tool_call>"


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("hermes", "plain", "plain", []),
        ("hermes", "  plain ", "  plain ", []),
        ("hermes", f"{OPEN}\n{ADD}\n{CLOSE}", "", [CALL]),
        ("hermes", f"I add. {OPEN}{ADD}{CLOSE}\n{OPEN}{ADD}{CLOSE} Done", "I add. \n Done", [CALL] * 2),
        ("hermes", f"{OPEN}{ADD}", "", [CALL]),
        ("hermes", f"{OPEN}{ADD} trailing words", "trailing words", [CALL]),
        ("hermes", f"{OPEN}{ADD}\n{OPEN}{ADD}{CLOSE}", "", [CALL] * 2),
        ("hermes", f"{OPEN}{{'name': 'add'}}{CLOSE}", "", ["no JSON"]),
        ("hermes", f"{OPEN}{ADD[:-1]}", "", ["</tool_call> is missing, and the call is no JSON"]),
        ("hermes", OPEN, "", ["</tool_call> is missing"]),
        ("hermes", f"{OPEN}{CLOSE}", "", ["no JSON"]),
        ("hermes", f'{OPEN}{{"arguments": {{}}}}{CLOSE}', "", ["the call has no name"]),
        ("hermes", f'{OPEN}{{"name": 3}}{CLOSE}', "", ["the call has no name"]),
        ("hermes", f'{OPEN}{{"name": "f", "arguments": 3}}{CLOSE}', "", ["arguments of f are no object"]),
        ("hermes", f'{OPEN}{{"name": "f", "arguments": "{{"}}{CLOSE}', "", ["arguments of f are no JSON"]),
        ("hermes", f'{OPEN}{{"name": "f"}}{CLOSE}', "", [ToolCall("f")]),
        ("hermes", f'{OPEN}{{"name": "f", "arguments": null}}{CLOSE}', "", [ToolCall("f")]),
        (
            "hermes",
            f'{OPEN}{{"name": "add", "arguments": "{{\\"a\\": 1}}"}}{CLOSE}',
            "",
            [CALL],
        ),
        ("hermes", f"{OPEN}{'[' * 50_000}{CLOSE}", "", ["too deep"]),
        ("hermes", f"{ADD}{CLOSE}", f"{ADD}{CLOSE}", []),
        ("json", ADD, "", [CALL]),
        ("json", f"[{ADD}, {ADD}]", "", [CALL] * 2),
        ("json", f'{{"tool_calls": [{{"function": {ADD}}}]}}', "", [CALL]),
        ("json", '{"name": "add", "parameters": {"a": 1}}', "", [CALL]),
        ("json", f"Look:\n```json\n{ADD}\n```\nThen\n```\n[{ADD}]\n```", "Look:\n\nThen", [CALL] * 2),
        ("json", f"```json\n{ADD}", "", [CALL]),
        ("json", '{"answer": 4}', '{"answer": 4}', []),
        ("json", "42", "42", []),
        ("json", "[1, 2]", "[1, 2]", []),
        ("json", "```python\nprint(1)\n```", "```python\nprint(1)\n```", []),
        ("json", '{"name": "add", "arguments": {', "", ["no JSON"]),
        ("json", "{oops", "{oops", []),
        ("pythonic", "[add(a=1), sub(2, -3)]", "", [CALL, ToolCall("sub", [2, -3])]),
        ("pythonic", "<|python_start|>[add(a=1)]<|python_end|>", "", [CALL]),
        ("pythonic", "add(a=1)", "", [CALL]),
        ("pythonic", "maths.add(a='x', b=[1, {'c': None}])", "", [ToolCall("maths.add", {"a": "x", "b": [1, {"c": None}]})]),
        ("pythonic", "The answer (4) is right", "The answer (4) is right", []),
        ("pythonic", "f (x is", "f (x is", []),
        ("pythonic", "[add(a=1", "", ["no Python"]),
        ("pythonic", "[add(a=1), 3]", "", [CALL, "an entry of the list is no call"]),
        ("pythonic", "[add(a=open('x'))]", "", ["arguments of add are no literals"]),
        ("pythonic", "[add(1, b=2)]", "", ["add mixes named and unnamed arguments"]),
        ("pythonic", "[add(" + "(" * 5000, "", ["no Python"]),
        ("brackets", "[12*7]", "", [ToolCall("", ["12*7"])]),
        ("brackets", "a[1]b[2", "ab", [ToolCall("", ["1"]), "] is missing"]),
        ("brackets", "84", "84", []),
        ("brackets", "84]", "84]", []),
    ],
)  # fmt: skip
def test_calls(name, text, content, calls):
    reply = parser(name).parse(text)
    assert (reply.content, reply.reasoning, reply.error) == (content, "", "")
    assert len(reply.calls) == len(calls)
    for found, expected in zip(reply.calls, calls, strict=True):
        if isinstance(expected, str):
            assert expected in found.error
        else:
            assert found == expected


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "error"),
    [
        ("plain", "plain", "", ""),
        ("<think>a</think>b", "b", "a", ""),
        ("<think>\na\n</think>\n\nb", "b", "a", ""),
        ("a</think>b", "b", "a", ""),
        ("<think>a</think>b<think>c</think>d", "bd", "a\nc", ""),
        ("<think>a", "", "a", "the reasoning has no </think>"),
        ("so <think>a", "so", "a", "the reasoning has no </think>"),
        ("<think></think>", "", "", ""),
        ("<think>\n<think>a</think>b", "b", "a", ""),
        ("</think>", "", "", ""),
    ],
)
def test_reasoning(text, content, reasoning, error):
    reply = parser("think_tag").parse(text)
    assert reply == ParsedReply(content, reasoning, [], error)


def test_parsers_stand_in_a_row():
    text = f"<think>{OPEN}{ADD}{CLOSE}</think>so {OPEN}{ADD}{CLOSE}"
    reply = parse_reply([parser("think_tag"), parser("hermes")], text)
    assert reply == ParsedReply("so", f"{OPEN}{ADD}{CLOSE}", [CALL], "")
    own = parser("hermes", opening="<call>", closing="</call>")
    assert own.parse(f"<call>{ADD}</call>").calls == [CALL]


PIECES = [OPEN, CLOSE, ADD, "<think>", "</think>", "[", "]", "(", ")", "{", "}", "```json\n", '"']


@given(st.lists(st.sampled_from(PIECES) | st.text(string.printable, max_size=5), max_size=12))
def test_nothing_that_a_model_writes_raises(pieces):
    text = "".join(pieces)
    for name in NAMES:
        reply = parser(name).parse(text)
        assert isinstance(reply.content, str)
        assert all(isinstance(call.name, str) for call in reply.calls)


def test_a_parser_that_raises_costs_a_reply_and_no_attempt(caplog):
    class Broken(Parser):
        def parse(self, text):
            raise IndexError(text)

    assert parse_reply([Broken()], "hm") == ParsedReply("hm", error="the reply cannot be read")
    assert "Broken.parse raised IndexError: hm" in caplog.text


def test_a_parser_that_answers_something_else_is_named():
    class Odd(Parser):
        def parse(self, text):
            return text

    with pytest.raises(TypeError, match=r"Odd.parse returned str; a ParsedReply is expected"):
        parse_reply([Odd()], "hm")


@pytest.mark.parametrize("name", ["hermes", "think_tag", "brackets"])
def test_empty_tags_are_refused(name):
    with pytest.raises(ConfigError, match="opening: must not be empty"):
        parser(name, opening="")
