"""LangChain: the three methods of ``with_structured_output``."""

from animal import CUT, MODEL, QUESTION, Animal, Anything, attempt
from langchain_openai import ChatOpenAI
from openai import LengthFinishReasonError

chat = ChatOpenAI(model=MODEL, max_retries=0)


def ask(mode):
    """What the model says by one of the methods."""
    schema = Anything if mode == "json_mode" else Animal
    try:
        return chat.with_structured_output(schema, method=mode).invoke(QUESTION)
    except LengthFinishReasonError:
        if mode == "json_mode":
            return CUT
        raise


attempt(ask)
