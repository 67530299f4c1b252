"""The tool of the calculator agent."""

from __future__ import annotations

import re


def calculate(expression: str) -> str:
    """The product that ``expression`` asks for, such as ``12*7``.

    Raises:
        ValueError: it is no product of whole numbers.
    """
    if not re.fullmatch(r"\d{1,9}(\*\d{1,9})+", expression):
        raise ValueError(f"{expression!r} is no product")
    product = 1
    for factor in expression.split("*"):
        product *= int(factor)
    return str(product)
