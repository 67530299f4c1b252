"""Close names for messages: what the user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Up to ``limit`` of the ``known`` names that resemble ``name``, the closest first."""
    lowered = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=limit, cutoff=0.6)
    return [lowered[match] for match in found]


def did_you_mean(name: str, known: Iterable[str], limit: int = 3) -> str:
    """``"; did you mean a, b?"``, or nothing when no known name is close."""
    found = close_names(name, known, limit)
    return f"; did you mean {', '.join(found)}?" if found else ""
