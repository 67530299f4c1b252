"""What a helper process does for the evaluator ``math``: read two answers and compare them."""

from __future__ import annotations

import logging
import re
from typing import Any

# At the top, so that the time of the import is not that of the first answer.
from math_verify import parse, verify

#: LaTeX commands, names in it, and functions: all letters that are no words.
_COMMAND = re.compile(
    r"\\(?:text|mathrm|mathbf|operatorname)\{[^{}]*\}|\\(?:begin|end)\{\w+\*?\}|\\[A-Za-z]+"
    r"|(?<![A-Za-z])(?:sin|cos|tan|log|ln|exp|sqrt|max|min|gcd)(?![A-Za-z])"
)
_WORD = re.compile(r"[^\W\d_]{2,}")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{...}`` or ``\fbox{...}``; None: there is none."""
    closed: dict[int, int] = {}
    waiting: list[int] = []
    for found in re.finditer("[{}]", text):
        if found[0] == "{":
            waiting.append(found.start())
        elif waiting:
            closed[waiting.pop()] = found.start()
    # The last one may be cut off, and an earlier one whole.
    for box in reversed([*re.finditer(r"\\(?:boxed|fbox)\{", text)]):
        if box.end() - 1 in closed:
            return text[box.end() : closed[box.end() - 1]]
    return None


def grade(answer: str, reference: str, boxed: str, digits: int) -> dict[str, Any]:
    """Compare ``answer`` with ``reference``.

    Args:
        answer: the text of the model.
        reference: a number, an expression or LaTeX, with or without dollars or a box.
        boxed: ``prefer``, ``require`` or ``ignore``.
        digits: decimal places of numbers.

    Returns:
        ``correct``, ``boxed``, and ``extracted``: what was found in the answer, or None.

    Raises:
        ValueError: nothing can be read in the reference.
    """
    # It warns that its own time limits are off: they need the main thread, and the helper has one.
    logging.disable(logging.WARNING)
    gold = _parse_answer(reference, bare=True)
    if not gold:
        raise ValueError(f"nothing can be read in the reference {reference!r:.80}")
    inside = last_boxed(answer)
    found = {"correct": False, "boxed": inside is not None, "extracted": None}
    if boxed == "require" and inside is None:
        return found
    whole = inside is None or boxed == "ignore"
    said = answer if whole else inside or ""
    if _line(said) == _line(reference):
        # math-verify finds nothing in some plain text, such as a word.
        return found | {"extracted": _line(said), "correct": True}
    if whole and _is_expression(said):
        # The full stop of a sentence is no part of it.
        target = _parse_answer(said.strip().removesuffix("."), bare=True)
    else:
        target = _parse_answer(said, bare=not whole)
    if target:
        found["extracted"] = str(target[-1]) if whole else _line(said)
        found["correct"] = bool(verify(gold, target, float_rounding=digits, timeout_seconds=None))
    return found


def _line(text: str) -> str:
    return " ".join(text.split())


def _is_expression(text: str) -> bool:
    r"""Whether text is one expression without dollars, such as ``2\pi``, and says nothing else.

    math-verify looks for LaTeX between dollars alone, and would take the 2 out of it.
    """
    text = text.strip()
    return "\n" not in text and not _WORD.search(_COMMAND.sub(" ", text))


def _parse_answer(text: str, *, bare: bool) -> list[Any]:
    """What math-verify finds; ``bare`` text is an answer alone, perhaps LaTeX without dollars."""
    if bare and "$" not in text and "\\boxed" not in text:
        found: list[Any] = parse(f"${text.strip()}$", parsing_timeout=None)
        if found:
            return found
    return list(parse(text, parsing_timeout=None))
