"""Answers that have a form, of a real model with random weights: what is asked for, is enforced."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest
from small_models import small_engine

from plugrl.core.text.endpoint.faults import ApiError
from plugrl.core.text.endpoint.requests import read_chat, read_text
from plugrl.core.text.endpoint.serving import ServiceSource
from plugrl.core.text.endpoint.session import Offer, Session
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import TokenLimits
from plugrl.scenarios.parsers.brackets import BracketsParser
from plugrl.scenarios.parsers.hermes import HermesParser
from plugrl.scenarios.parsers.json_calls import JsonParser
from plugrl.scenarios.parsers.think_tag import ThinkTagParser

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import CHARACTERS, TEMPLATE, Written, body, run, session_of

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["kind", "age"],
    "additionalProperties": False,
}
HELLO = [{"role": "user", "content": "hello"}]
THINKING = TEMPLATE.replace(
    "<assistant>", "<assistant>{% if reasoning_effort %}{{ reasoning_effort }}{% endif %}"
)


def engine_of(template):
    return small_engine(CHARACTERS, template, positions=1024)


@pytest.fixture(scope="module")
def model():
    return engine_of(THINKING)


@contextmanager
def session(model, calls=HermesParser, parsers=()):
    offer = Offer(
        tokenizers={"policy": model.tokenizer},
        limits=TokenLimits.of({"policy": model}),
        sampling=SamplingParams(max_new_tokens=300),
        parsers=[parser() for parser in parsers],
        call_parsers=[calls()],
    )
    try:
        yield Session("s", offer, ServiceSource({"policy": model}))
    finally:
        model.close()


def ask(model, calls=HermesParser, parsers=(), **values):
    """The choices of a request."""
    with session(model, calls, parsers) as own:
        return run(own.answer(read_chat(body(**{"messages": HELLO, "seed": 3, **values}))))


def refused(model, calls=HermesParser, **values):
    with pytest.raises(ApiError) as caught:
        ask(model, calls, **values)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return caught.value


def function(name, parameters=SCHEMA, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def schema_format(schema=SCHEMA):
    own = {"name": "animal", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": own}


def test_json_of_a_schema(model):
    for choice in ask(model, n=4, response_format=schema_format()):
        jsonschema.validate(json.loads(choice.message["content"]), SCHEMA)
        assert choice.finish == "stop"
        assert choice.completion.tokens[-1] == model.tokenizer.eos_token_id


def test_any_json_object(model):
    kept = [
        c for c in ask(model, n=8, response_format={"type": "json_object"}) if c.finish == "stop"
    ]
    assert kept
    assert all(isinstance(json.loads(c.text), dict) for c in kept)


@pytest.mark.parametrize("calls", [HermesParser, JsonParser])
def test_a_tool_by_its_name(model, calls):
    named = {"type": "function", "function": {"name": "buy"}}
    tools = [function("sell"), function("buy")]
    for choice in ask(model, calls, n=4, tools=tools, tool_choice=named):
        (call,) = choice.calls
        assert call["function"]["name"] == "buy"
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
        assert choice.finish == "tool_calls"


def test_some_tool(model):
    tools = [
        function("sell"),
        function("buy", {"type": "object", "properties": {}, "additionalProperties": False}),
    ]
    several = ask(model, n=24, tools=tools, tool_choice="required", temperature=2)
    assert {call["function"]["name"] for c in several for call in c.calls} == {"sell", "buy"}
    assert max(len(c.calls) for c in several) > 1
    one = ask(model, n=16, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert {len(c.calls) for c in one} == {1}


def test_json_or_a_call_where_tools_may_be_called(model):
    several = ask(model, n=16, tools=[function("buy")], response_format=schema_format())
    done = [choice for choice in several if choice.finish != "length"]
    assert done
    for choice in done:
        text = choice.calls[0]["function"]["arguments"] if choice.calls else choice.text
        jsonschema.validate(json.loads(text), SCHEMA)
    without = ask(
        model, tools=[function("buy")], tool_choice="none", response_format=schema_format()
    )
    assert without[0].calls == []


def test_reasoning_stands_before_the_form(model):
    several = ask(model, parsers=[ThinkTagParser], n=4, response_format=schema_format())
    done = [choice for choice in several if choice.finish == "stop"]
    for choice in done:
        jsonschema.validate(json.loads(choice.message["content"]), SCHEMA)
    assert done


def test_strict_tools_are_enforced_where_a_model_calls_one():
    # The first tokens decide: a greedy model of biased weights calls, a free one says anything.
    import torch

    model = engine_of(THINKING)
    start = model.tokenizer.encode("<tool_call>")
    with session(model) as own:
        asked = read_chat(body(messages=HELLO, tools=[function("buy", strict=True)]))
        grammar, unenforced = run(
            own._grammar(asked, "policy", own._prompts(asked, "policy", model.tokenizer)[0])
        )
    assert unenforced == []
    matcher = model._grammars.matcher(grammar)
    free = torch.from_numpy(matcher.bits.copy())
    assert int(free.sum()) > 0
    for token in start:
        matcher.take(token)
    allowed = [t for t in range(model.vocabulary_size) if matcher.bits[t // 8] >> (t % 8) & 1]
    assert sorted(model.tokenizer.decode([t]) for t in allowed) == ["\n", "{"]


def test_what_is_not_enforced_is_said_and_counted(model):
    with session(model, BracketsParser) as own:
        request = body(
            messages=HELLO,
            tools=[function("buy", strict=True)],
            parallel_tool_calls=False,
            max_tokens=3,
        )
        (choice,) = run(own.answer(read_chat(request)))
        assert choice.unenforced == ["tools.strict", "parallel_tool_calls"]
        (choice,) = run(
            own.answer(
                read_chat(body(messages=HELLO, max_tokens=3, chat_template_kwargs={"colour": 1}))
            )
        )
        assert choice.unenforced == ["colour"]
        run(own.answer(read_chat(body(messages=HELLO, max_tokens=3))))
        assert own.unenforced == 2


def test_the_template_is_told_of_the_effort(model):
    with session(model) as own:
        (choice,) = run(
            own.answer(read_chat(body(messages=HELLO, max_tokens=2, reasoning_effort="high")))
        )
        assert choice.unenforced == []
        assert own.recording.turns[0].prompt.text.endswith("<assistant>high")
    other = Written()
    with session_of(other) as own:
        (choice,) = run(own.answer(read_chat(body(messages=HELLO, reasoning_effort="high"))))
        assert choice.unenforced == ["reasoning_effort"]
        assert own.recording.turns[0].prompt.text.endswith("<assistant>")


def test_the_most_probable_tokens_are_sent(model):
    from plugrl.core.text.endpoint import answers

    with session(model) as own:
        asked = read_chat(
            body(messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0)
        )
        choices = run(own.answer(asked))
        told = answers.answer_body(answers.AnswerHead("i", 0), asked, choices, model.tokenizer)
        for entry in told["choices"][0]["logprobs"]["content"]:
            assert len(entry["top_logprobs"]) == 3
            assert entry["top_logprobs"][0]["token"] == entry["token"]
            assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-5)
        asked = read_text(body(prompt="ab", max_tokens=4, logprobs=2, temperature=0))
        told = answers.answer_body(
            answers.AnswerHead("i", 0), asked, run(own.answer(asked)), model.tokenizer
        )
        own = told["choices"][0]["logprobs"]
    assert [max(top, key=top.get) for top in own["top_logprobs"]] == own["tokens"]


BAD_SCHEMAS = {
    "not enforced": {"not": {"type": "string"}},
    "no pattern": {"type": "string", "pattern": "("},
    "no such type": {"type": "tree"},
    "elsewhere": {"$ref": "http://localhost/x"},
    "itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "impossible": {"type": "integer", "minimum": 3, "maximum": 2},
    "a multiple that takes seconds": {"items": {"type": "integer", "multipleOf": 999_983}},
    "large": {"enum": ["x" * 100 + str(i) for i in range(10_000)]},
}
NAMED_B = {"type": "function", "function": {"name": "b"}}
BAD_TOOL = function("a", {"type": "object", "properties": {"x": {"type": "tree"}}})
BAD = {
    **{
        f"schema, {case}": ({"response_format": schema_format(schema)}, "response_format")
        for case, schema in BAD_SCHEMAS.items()
    },
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "no type": ({"response_format": {"type": "grammar"}}, "response_format"),
    "no tool is there": ({"tool_choice": "required"}, "tool_choice"),
    "no such tool": ({"tools": [function("a")], "tool_choice": NAMED_B}, "tool_choice"),
    "another form": ({"tools": [function("a")], "tool_choice": {"type": "custom"}}, "tool_choice"),
    "two of one name": ({"tools": [function("a"), function("a")]}, "tools[1]"),
    "a tool with a bad schema": ({"tools": [BAD_TOOL], "tool_choice": "required"}, "tools"),
    "a shortest length": ({"response_format": schema_format(), "min_tokens": 4}, "min_tokens"),
    "too many": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "without logprobs": ({"top_logprobs": 2}, "top_logprobs"),
    "a penalty": ({"presence_penalty": 2.1}, "presence_penalty"),
    "another penalty": ({"repetition_penalty": 0}, "repetition_penalty"),
    "a part": ({"min_p": -0.1}, "min_p"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_enforced_is_refused_in_one_line(model, case):
    values, param = BAD[case]
    error = refused(model, **values)
    assert (error.status, error.param) == (400, param)


def test_calls_cannot_be_forced_where_nobody_knows_how_they_are_written(model):
    error = refused(model, BracketsParser, tools=[function("a")], tool_choice="required")
    assert (error.param, error.code) == ("tool_choice", "unsupported_value")
    error = refused(model, BracketsParser, tools=[function("a")], response_format=schema_format())
    assert (error.param, error.code) == ("response_format", "unsupported_value")


def test_a_service_that_knows_no_grammars_refuses_forms():
    with session_of(Written()) as own:
        for values, param in (
            ({"response_format": schema_format()}, "response_format"),
            ({"tools": [function("a")], "tool_choice": "required"}, "tool_choice"),
        ):
            with pytest.raises(ApiError) as caught:
                run(own.answer(read_chat(body(messages=HELLO, **values))))
            assert (caught.value.status, caught.value.param) == (400, param)
        for strict, parallel, unenforced in (
            (True, False, ["tools.strict", "parallel_tool_calls"]),
            (True, True, ["tools.strict"]),
            (False, False, ["parallel_tool_calls"]),
            (False, True, []),
        ):
            tools = [function("a", strict=strict)]
            asked = body(messages=HELLO, tools=tools, parallel_tool_calls=parallel)
            (choice,) = run(own.answer(read_chat(asked)))
            assert choice.unenforced == unenforced


def test_recursion_with_an_end_is_enforced(model):
    tree = {
        "$ref": "#/$defs/n",
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                "required": ["n"],
                "additionalProperties": False,
            }
        },
    }
    for choice in ask(model, n=4, response_format=schema_format(tree)):
        jsonschema.validate(json.loads(choice.text), tree)
    for choice in ask(
        model, n=2, tools=[function("f", tree)], tool_choice="required", parallel_tool_calls=False
    ):
        jsonschema.validate(json.loads(choice.calls[0]["function"]["arguments"]), tree)
