"""Regular expressions of users: checked before they are compiled, and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import regex

from plugrl.core.errors import ConfigError

#: A pattern with this many parts compiles in about a second.
MOST_REPEATS = 1_000_000
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?:(\d+)(?:,\d*)?|,\d+)\}|.", re.DOTALL)


def repeats(pattern: str) -> int:
    """How many parts a pattern has, once what must be there several times is written out."""
    sizes, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        if piece[0] == "(":
            sizes.append(0)
            last = 0
            continue
        if piece[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif piece[1] is not None:
            sizes[-1] += last * (max(int(piece[1][:9]), 1) - 1)
            last *= max(int(piece[1][:9]), 1)
        elif not piece[0].startswith("{,"):
            last = 1
            sizes[-1] += 1
    return sum(sizes)


def check_repeats(name: str, pattern: str) -> None:
    """Refuse a pattern that would take minutes, or all memory, to compile.

    Raises:
        ConfigError: what it must match is longer than ``MOST_REPEATS``.
    """
    if repeats(pattern) > MOST_REPEATS:
        raise ConfigError(
            f"{name} has counts like {{1000}} inside each other, more than {MOST_REPEATS} "
            "repeats in all, which would not be compiled in time; lower them"
        )


def compiled_pattern(setting: str, pattern: str, flags: int = regex.VERSION0) -> Any:
    """The pattern of a setting.

    Raises:
        ConfigError: it is no regular expression, or takes too long to become one.
    """
    check_repeats(setting, pattern)
    try:
        return regex.compile(pattern, flags)
    except regex.error as error:
        raise ConfigError(f"{setting} is no regular expression: {error}") from None


def flags_of(section: Mapping[str, Any]) -> int:
    """The flags that a section's ``ignore_case``, ``dotall`` and ``multiline`` ask for."""
    flags: int = regex.VERSION0
    for name in ("ignore_case", "dotall", "multiline"):
        if section[name]:
            flags |= getattr(regex, name.replace("_", "").upper())
    return flags
