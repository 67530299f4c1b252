"""An agent that knows nothing of plugrl: it speaks OpenAI's interface, with a tool of its own."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

MULTIPLY = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Multiplies two numbers.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def solve(base_url: str, api_key: str, problem: dict[str, Any]) -> str:
    """Ask, do what is called for, and ask again, at most four times; returns the last answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem["prompt"]}]
    said: dict[str, Any] = {}
    for _ in range(4):
        said = ask(base_url, api_key, messages)
        messages.append(said)
        if not said.get("tool_calls"):
            break
        for call in said["tool_calls"]:
            result = calculate(json.loads(call["function"]["arguments"]).get("expression", ""))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return said.get("content") or ""


def ask(base_url: str, api_key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the model answers; any client of OpenAI's interface does the same."""
    body = json.dumps({"model": "policy", "messages": messages, "tools": [MULTIPLY]}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def calculate(expression: str) -> str:
    """The product that ``expression`` asks for; "?" if it is none."""
    left, star, right = expression.partition("*")
    if not (star and left.isdecimal() and right.isdecimal()) or len(expression) > 12:
        return "?"
    return str(int(left) * int(right))
