"""How messages to people are worded: close names, and the texts of others within bounds."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable

#: Control characters but line feed and tab, and marks that change the direction of writing.
_STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")

#: Characters that a message keeps of a text that others wrote.
LONGEST = 2000
#: Characters of one word of a message, such as a key, a name or a path.
LONGEST_WORD = 500
#: Characters of one record of a log, with its traceback.
LONGEST_RECORD = 50_000

_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def close_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Up to ``limit`` of the ``known`` names that resemble ``name``, the closest first."""
    lowered = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=limit, cutoff=0.6)
    return [lowered[match] for match in found]


def did_you_mean(name: str, known: Iterable[str], limit: int = 3) -> str:
    """``"; did you mean a, b?"``, or nothing when no known name is close."""
    found = close_names(name, known, limit)
    return f"; did you mean {', '.join(found)}?" if found else ""


def did_you_mean_variable(name: str) -> str:
    """:func:`did_you_mean` for the name of an environment variable; values are never shown."""
    return did_you_mean(name, os.environ, 1)


def misspelt_field(template: str, known: Iterable[str]) -> str | None:
    """``{promt}; did you mean {prompt}?`` of the first field like a known one; None: there is none.

    Braces around anything else are text, such as an example of JSON.
    """
    fields = set(known)
    for name in re.findall(r"\{(\w+)\}", template):
        close = [] if name in fields else close_names(name, fields, 1)
        if close:
            return f"{{{name}}}; did you mean {{{close[0]}}}?"
    return None


def bounded(text: str, limit: int = LONGEST) -> str:
    """``text`` with its middle left out beyond ``limit`` characters, and how much that is.

    For whatever comes from outside into messages, records and logs: texts of exceptions, replies
    of servers, reasons of evaluators.
    """
    if len(text) <= limit:
        return text
    end = limit // 4
    left_out = len(text) - limit
    return f"{text[: limit - end]} [... {left_out:,} characters ...] {text[-end:]}"


def bounded_message(text: str) -> str:
    """``text`` with the middle of its long words, and of its long lines, left out.

    For errors, which quote keys, values and names that others wrote. What is bounded already stays
    as it is.
    """
    if len(text) <= LONGEST_WORD:
        return text
    text = _LONG_WORD.sub(lambda match: bounded(match[0], LONGEST_WORD - 100), text)
    return "\n".join(
        line if len(line) <= LONGEST else bounded(line, LONGEST - 100) for line in text.split("\n")
    )


def shown(text: str) -> str:
    """``text`` with every character that would steer a terminal written as its escape."""
    return _STEERING.sub(lambda match: repr(match[0])[1:-1], text)
