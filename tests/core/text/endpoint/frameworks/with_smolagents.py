"""smolagents: an agent that calls tools, and one that writes code."""

import os

from animal import MODEL, QUESTION, attempt
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent

model = OpenAIModel(
    MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
# Their own prompts are examples of thousands of characters, each of which is a token here.
short = {
    "system_prompt": "Answer.",
    "planning": {
        "initial_plan": "",
        "update_plan_pre_messages": "",
        "update_plan_post_messages": "",
    },
    "managed_agent": {"task": "", "report": ""},
    "final_answer": {"pre_messages": "Now.", "post_messages": "{{task}}"},
}
more = {"model": model, "prompt_templates": short, "max_steps": 1}
more |= {"verbosity_level": LogLevel.OFF}


def ask(mode):
    """What an agent of one of the sorts says."""
    if mode == "tools":
        return str(ToolCallingAgent(tools=[], **more).run(QUESTION))
    agent = CodeAgent(tools=[], use_structured_outputs_internally=mode == "json", **more)
    return str(agent.run(QUESTION))


attempt(ask)
