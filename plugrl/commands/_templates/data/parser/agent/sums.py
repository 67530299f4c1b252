"""The tool of the agent."""


def add(question: str) -> str:
    """The sum of two numbers, such as ``1+2``.

    Raises:
        ValueError: the question has another form; the model is told.
    """
    first, second = question.split("+")
    return str(int(first) + int(second))
