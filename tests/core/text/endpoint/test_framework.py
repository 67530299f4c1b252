"""An agent framework from PyPI, unchanged, against the endpoint."""

import sys
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import TOKEN, Written, call_text, served
from test_http import request

pytestmark = pytest.mark.integration


def test_an_agent_of_pydantic_ai_with_a_tool_is_one_trajectory():
    def reply(text):
        if "<tool>" not in text:
            return call_text("multiply", a=6, b=7) + call_text("multiply", a=2, b=3)
        return "42 and 6"

    model = Written(reply)
    with served(model) as url:
        made = request(f"{url}/sessions")[1]
        provider = OpenAIProvider(base_url=made["base_url"], api_key=TOKEN)
        agent = Agent(OpenAIChatModel("policy", provider=provider), system_prompt="Calculate.")

        @agent.tool_plain
        def multiply(a: int, b: int) -> int:
            """The product."""
            return a * b

        result = agent.run_sync("6*7 and 2*3?")
        shown = request(f"{url}/sessions/{made['id']}", "GET")[1]["turns"]
    assert result.output == "42 and 6"
    assert [turn["continues"] for turn in shown] == [False, True]
    results = [m["content"] for m in shown[1]["messages"] if m["role"] == "tool"]
    assert results == ["42", "6"]
    before = shown[0]["prompt_token_ids"] + shown[0]["token_ids"]
    assert shown[1]["prompt_token_ids"][: len(before)] == before


def test_a_stream_of_pydantic_ai():
    with served(Written()) as url:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key=TOKEN)
        agent = Agent(OpenAIChatModel("policy", provider=provider))

        async def collect():
            async with agent.run_stream("hello") as result:
                return [text async for text in result.stream_text(delta=True, debounce_by=None)]

        import asyncio

        assert "".join(asyncio.run(collect())) == "hello"
