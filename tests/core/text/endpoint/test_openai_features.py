"""What OpenAI's own client offers agents, against a server of a real model with random weights."""

import http.client
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import jsonschema
import pytest
from openai import BadRequestError, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field
from waiting import DEADLINE, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import TOKEN, Written, call_text, served
from test_forms import HELLO, SCHEMA, THINKING, engine_of, function, schema_format
from test_http import request

pytestmark = pytest.mark.integration


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=99)


@pytest.fixture(scope="module")
def model():
    return engine_of(THINKING)


@contextmanager
def client(model):
    with served(model) as url:
        yield OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0)


def test_parsed_answers_and_tools(model):
    with client(model) as asking:
        chats = asking.chat.completions
        # Unseeded, random weights reason beyond the limit of tokens now and then.
        parsed = chats.parse(model="policy", messages=HELLO, response_format=Animal, seed=1)
        assert isinstance(parsed.choices[0].message.parsed, Animal)
        tools = [pydantic_function_tool(Animal, name="buy")]
        called = chats.parse(
            model="policy", messages=HELLO, tools=tools, tool_choice="required", seed=1
        )
        for call in called.choices[0].message.tool_calls:
            assert isinstance(call.function.parsed_arguments, Animal)


def test_a_stream_of_a_forced_call(model):
    named = {"type": "function", "function": {"name": "buy"}}
    with (
        client(model) as asking,
        asking.chat.completions.stream(
            model="policy", messages=HELLO, tools=[function("buy")], tool_choice=named, seed=1
        ) as stream,
    ):
        for _ in stream:
            pass
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_responses_of_text_and_of_a_schema(model):
    with client(model) as asking:
        said = asking.responses.create(
            model="policy", input="hello", instructions="Be brief.", max_output_tokens=5,
            extra_body={"min_tokens": 5},
        )  # fmt: skip
        assert said.status == "incomplete"
        assert said.incomplete_details.reason == "max_output_tokens"
        assert said.usage.output_tokens == 5
        assert len(said.output_text) <= 5
        parsed = asking.responses.parse(
            model="policy", input=HELLO, text_format=Animal, extra_body={"seed": 1}
        )
        assert isinstance(parsed.output_parsed, Animal)
        assert parsed.status == "completed"
        told = asking.responses.create(
            model="policy", input="hello", max_output_tokens=3, top_logprobs=2,
            include=["message.output_text.logprobs"], extra_body={"min_tokens": 3},
        )  # fmt: skip
        entries = told.output[0].content[0].logprobs
        assert [len(entry.top_logprobs) for entry in entries] == [2, 2, 2]


def test_a_stream_of_a_response_equals_the_response(model):
    with client(model) as asking:
        kinds = []
        with asking.responses.stream(
            model="policy", input="hello", text_format=Animal, extra_body={"seed": 1}
        ) as stream:
            deltas = ""
            for event in stream:
                kinds.append(event.type)
                deltas += event.delta if event.type == "response.output_text.delta" else ""
            final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert isinstance(final.output_parsed, Animal)
    assert deltas == final.output_text


def test_calls_of_functions_by_responses_are_one_trajectory():
    def reply(text):
        return "42" if "<tool>" in text else call_text("multiply", a=6, b=7)

    tool = {
        "type": "function",
        "name": "multiply",
        "parameters": {"type": "object"},
        "strict": False,
    }
    model = Written(reply)
    with served(model) as url:
        made = request(f"{url}/sessions")[1]
        asking = OpenAI(base_url=made["base_url"], api_key=TOKEN, max_retries=0)
        given = [{"role": "user", "content": "6*7?"}]
        first = asking.responses.create(model="policy", input=given, tools=[tool])
        (call,) = first.output
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call", "multiply", {"a": 6, "b": 7},
        )  # fmt: skip
        given += [each.model_dump(exclude_none=True) for each in first.output]
        given.append({"type": "function_call_output", "call_id": call.call_id, "output": "42"})
        second = asking.responses.create(model="policy", input=given, tools=[tool])
        assert second.output_text == "42"
        turns = request(f"{url}/sessions/{made['id']}", "GET")[1]["turns"]
        events = list(asking.responses.create(model="policy", input="x", tools=[tool], stream=True))
    assert [turn["continues"] for turn in turns] == [False, True]
    assert turns[1]["prompt_token_ids"][
        : len(turns[0]["prompt_token_ids"] + turns[0]["token_ids"])
    ] == (turns[0]["prompt_token_ids"] + turns[0]["token_ids"])
    done = [each for each in events if each.type == "response.function_call_arguments.done"]
    assert json.loads(done[0].arguments) == {"a": 6, "b": 7}
    assert [each.sequence_number for each in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"store": True}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": 4}, "input"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning": {"effort": "most"}}, "reasoning_effort"),
    ],
)  # fmt: skip
def test_what_responses_cannot_have_is_refused_by_name(values, param):
    with client(Written()) as asking, pytest.raises(BadRequestError) as caught:
        asking.responses.create(**{"model": "policy", "input": "x", **values})
    assert caught.value.param == param
    assert "\n" not in caught.value.message


def test_what_a_client_that_hung_up_had_asked_is_not_recorded():
    model = Written()
    model.gate.clear()
    with served(model) as url:
        made = request(f"{url}/sessions")[1]
        address, path = made["base_url"].removeprefix("http://").split("/", 1)
        gone = http.client.HTTPConnection(address)
        asked = json.dumps({"model": "policy", "messages": HELLO})
        headers = {"authorization": f"Bearer {TOKEN}"}
        gone.request("POST", f"/{path}/chat/completions", asked, headers)
        assert model.entered.wait(DEADLINE)
        gone.sock.close()
        asking = OpenAI(base_url=made["base_url"], api_key=TOKEN, max_retries=0)
        model.gate.set()
        assert asking.chat.completions.create(model="policy", messages=HELLO).choices
        wait_until(lambda: len(model.asked) == 2)
        turns = request(f"{url}/sessions/{made['id']}", "GET")[1]["turns"]
    assert len(turns) == 1


def test_forms_of_real_engines_end_when_the_client_goes(model):
    with served(model) as url:
        address = url.removeprefix("http://")
        gone = http.client.HTTPConnection(address)
        asked = {
            "model": "policy",
            "messages": HELLO,
            "response_format": schema_format({"type": "string", "minLength": 900}),
        }
        headers = {"authorization": f"Bearer {TOKEN}"}
        gone.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        gone.close()
        asking = OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0)
        answer = asking.chat.completions.create(
            model="policy", messages=HELLO, response_format=schema_format(), seed=1
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
