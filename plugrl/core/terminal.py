"""Text for terminals: what others wrote must not steer the terminal of whoever reads it."""

from __future__ import annotations

import re

#: Control characters but line feed and tab, and marks that change the direction of writing.
_STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")


def shown(text: str) -> str:
    """``text`` with every character that would steer a terminal written as its escape."""
    return _STEERING.sub(lambda match: repr(match[0])[1:-1], text)
