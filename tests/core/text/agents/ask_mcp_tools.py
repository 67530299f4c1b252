"""Calls the tools of an agent's file one after the other and prints what they give, as JSON."""

import asyncio
import json
import sys

from plugrl.core.errors import ConfigError
from plugrl.core.text.agents.agent_config import load_agent
from plugrl.core.text.agents.parsing import ToolCall
from plugrl.core.text.agents.tools import Toolbox, ToolFailedError

CALLS = [
    ("count", {"text": "abc"}),
    ("count", ["abcd"]),
    ("count", {"txt": "abc"}),
    ("fail", {}),
    ("leave", {}),
    ("count", {"text": "ab"}),
]


async def results(toolbox):
    for name, arguments in CALLS:
        try:
            yield await toolbox.call(ToolCall(name, arguments))
        except ToolFailedError as error:
            yield f"error: {error}"


async def main(agent):
    toolbox = Toolbox(list(agent.tools), 60)
    print(json.dumps([result async for result in results(toolbox)]))


try:
    loaded = load_agent(sys.argv[1])
except ConfigError as error:
    raise SystemExit(str(error)) from None
# Attempts of a run come with event loops of their own.
asyncio.run(main(loaded))
asyncio.run(main(loaded))
