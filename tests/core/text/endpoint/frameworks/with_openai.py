"""OpenAI's own client: forms of chats and of responses."""

from animal import CUT, MODEL, QUESTION, Animal, Anything, attempt
from openai import OpenAI, pydantic_function_tool

client = OpenAI(max_retries=0)
chats = client.chat.completions
NAMED = {"type": "function", "function": {"name": "buy"}}
TOOL = {"type": "function", "name": "buy", "parameters": Animal.model_json_schema()}


def ask(mode):
    """What the model says in one of the modes."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
    if mode == "json_schema":
        return chats.parse(**asked, response_format=Animal).choices[0].message.parsed
    if mode == "json_object":
        answer = chats.create(**asked, response_format={"type": "json_object"}).choices[0]
        cut = answer.finish_reason == "length"
        return CUT if cut else Anything.model_validate_json(answer.message.content)
    if mode in ("required", "named"):
        asked["tool_choice"] = NAMED if mode == "named" else "required"
        tools = [pydantic_function_tool(Animal, name="buy")]
        answer = chats.parse(**asked, tools=tools, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        return call.function.parsed_arguments
    if mode == "options":
        return (
            chats.create(
                **asked,
                max_tokens=20,
                presence_penalty=1.0,
                frequency_penalty=0.5,
                logprobs=True,
                top_logprobs=3,
                extra_body={"min_p": 0.01, "repetition_penalty": 1.1},
            )
            .choices[0]
            .message.content
        )
    if mode == "responses":
        return client.responses.parse(model=MODEL, input=QUESTION, text_format=Animal).output_parsed
    answer = client.responses.create(
        model=MODEL, input=QUESTION, tools=[TOOL], tool_choice={"type": "function", "name": "buy"}
    )
    return Animal.model_validate_json(answer.output[0].arguments)


attempt(ask)
