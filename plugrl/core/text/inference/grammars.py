"""Grammars of answers: whether the library for them is here, and what is wrong with one."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from typing import Any

#: What is missing without the extra, for a message.
MISSING = 'llguidance is not installed; run: pip install "plugrl[serve]"'
#: A line that says where in its source a message of the library arose, and marks below a column.
_PLACES = re.compile(r"^\s*(\^+|\d+\(\d+\):|-->.*)\s*$", re.MULTILINE)


@lru_cache(maxsize=1)
def is_installed() -> bool:
    """Whether grammars can be compiled here."""
    return importlib.util.find_spec("llguidance") is not None


@lru_cache(maxsize=1)
def _bytes_alone() -> Any:
    """A tokenizer with a token for each byte, which can write anything."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


@lru_cache(maxsize=256)
def grammar_fault(grammar: str) -> str:
    """What is wrong with a grammar, in one line; "": nothing.

    Args:
        grammar: in the Lark dialect of ``llguidance``, with JSON schemas behind ``%json``.
    """
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if not failed:
        # Such as a definition that is nothing but itself.
        matcher = LLMatcher(_bytes_alone(), grammar, log_level=0)
        possible = any(matcher.compute_bitmask()) and not matcher.is_error()
        return "" if possible else "nothing matches it"
    said = " ".join(_PLACES.sub("", "; ".join(messages)).split())
    return said[:200] or "it cannot be compiled"
