"""Pydantic AI: the three ways in which an agent has a typed output, and both interfaces."""

from animal import CUT, MODEL, QUESTION, Animal, Anything, attempt
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import OutputTokenLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

OUTPUTS = {
    "tool": ToolOutput(Animal),
    "native": NativeOutput(Animal),
    "prompted": PromptedOutput(Anything),
}


def ask(mode):
    """What an agent says in one of the modes."""
    interface, _, output = mode.partition("_")
    kind = OpenAIResponsesModel if interface == "responses" else OpenAIChatModel
    model = kind(MODEL, provider=OpenAIProvider())
    agent = Agent(model, output_type=OUTPUTS[output], retries=8)
    try:
        return agent.run_sync(QUESTION).output
    except OutputTokenLimitExceeded:
        if output == "prompted":
            return CUT
        raise


attempt(ask)
