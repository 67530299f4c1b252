"""What a helper process does for the evaluator ``math``: read two answers and compare them."""

from __future__ import annotations

import logging
from typing import Any

# At the top, so that the time of the import is not that of the first answer.
from math_verify import parse, verify


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{...}`` or ``\fbox{...}``; None: there is none."""
    end = len(text)
    while True:
        start = max(text.rfind(r"\boxed{", 0, end), text.rfind(r"\fbox{", 0, end))
        if start < 0:
            return None
        opened = text.index("{", start)
        depth = 0
        for position in range(opened, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[opened + 1 : position]
        # It was cut off; an earlier one may be whole.
        end = start


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
    gold = _parsed(reference, bare=True)
    if not gold:
        raise ValueError(f"nothing can be read in the reference {reference!r:.80}")
    inside = last_boxed(answer)
    found = {"correct": False, "boxed": inside is not None, "extracted": None}
    if boxed == "require" and inside is None:
        return found
    whole = inside is None or boxed == "ignore"
    target = _parsed(answer if whole else inside or "", bare=not whole)
    if target:
        found["extracted"] = str(target[-1]) if whole else " ".join((inside or "").split())
        found["correct"] = bool(verify(gold, target, float_rounding=digits, timeout_seconds=None))
    return found


def _parsed(text: str, *, bare: bool) -> list[Any]:
    """What math-verify finds; ``bare`` text is an answer alone, perhaps LaTeX without dollars."""
    if bare and "$" not in text and "\\boxed" not in text:
        found: list[Any] = parse(f"${text.strip()}$", parsing_timeout=None)
        if found:
            return found
    return list(parse(text, parsing_timeout=None))
