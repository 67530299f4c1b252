"""LangChain: the three methods of ``with_structured_output``."""

from animal import MODEL, QUESTION, Animal, Anything, attempt
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model=MODEL, max_retries=0)


def ask(mode):
    """What the model says by one of the methods; what it is cut off in is no object."""
    schema = Anything if mode == "json_mode" else Animal
    asking = chat.with_structured_output(schema, method=mode, include_raw=True)
    answer = asking.invoke(QUESTION)
    if mode == "json_mode" and answer["raw"].response_metadata["finish_reason"] == "length":
        return "cut"
    return answer["parsed"]


attempt(ask)
