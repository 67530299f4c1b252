"""OpenAI's agents: typed outputs and tools, by responses and by chats."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from animal import MODEL, QUESTION, Animal, attempt
from openai import AsyncOpenAI

set_tracing_disabled(True)
KINDS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


@function_tool
def buy(animal: Animal) -> str:
    """Buys an animal."""
    return animal.model_dump_json()


def ask(mode):
    """What an agent says by one of the interfaces, typed or by a tool."""
    interface, output = mode.split("_")
    model = KINDS[interface](model=MODEL, openai_client=AsyncOpenAI(max_retries=0))
    if output == "output":
        agent = Agent(name="one", instructions="Be brief.", model=model, output_type=Animal)
        return Runner.run_sync(agent, QUESTION).final_output
    agent = Agent(
        name="one",
        model=model,
        tools=[buy],
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False),
    )
    return Animal.model_validate_json(Runner.run_sync(agent, QUESTION).final_output)


attempt(ask)
