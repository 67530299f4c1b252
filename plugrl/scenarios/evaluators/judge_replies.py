"""The number in the reply of a language model that judges."""

from __future__ import annotations

import regex

from plugrl.core.errors import ConfigError
from plugrl.scenarios.evaluators.patterns import compiled_pattern

#: Finds "Score: 0.5" and "score = 3/4".
SCORE_PATTERN = r"score\s*[:=]\s*([-+]?[\d.]+(?:\s*/\s*\d+)?)"


def check_number_pattern(setting: str, pattern: str, number: str) -> None:
    """Refuse a pattern that finds no number.

    Raises:
        ConfigError: it is no regular expression, or has no group.
    """
    if compiled_pattern(setting, pattern).groups < 1:
        raise ConfigError(f"{setting} needs a group (...) around the {number}")


def last_number(pattern: str, reply: str) -> tuple[str | None, int]:
    """What the first group of the last match holds, and where it ends; None: nothing matches.

    Raises:
        TimeoutError: matching took too long.
    """
    found, end = None, 0
    for match in regex.finditer(pattern, reply, regex.IGNORECASE, timeout=1.0):
        found, end = match.group(1), match.end(1)
    return found, end
