"""Numbers as people write them in answers."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII
)
_SIGNS = str.maketrans({"\N{MINUS SIGN}": "-", "$": None, "€": None, "£": None, "_": None})


def parse_number(text: str) -> Fraction | None:
    """The number that ``text`` is, exactly: ``1,234.50``, ``-3/4``, ``2e3``, ``$5``, ``12 %``.

    A per cent sign divides by 100. None: it is no number, or has more than 400 characters.
    """
    plain = text.strip().translate(_SIGNS).strip().rstrip(".")
    if len(plain) > 400:
        return None
    percent = plain.endswith("%")
    top, slash, bottom = plain.rstrip("%").strip().partition("/")
    numerator, denominator = _single(top), _single(bottom) if slash else Fraction(1)
    if numerator is None or not denominator:
        return None
    return numerator / denominator / (100 if percent else 1)


def _single(text: str) -> Fraction | None:
    text = text.strip()
    return Fraction(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def close(value: Fraction, reference: Fraction, absolute: float, relative: float) -> bool:
    """Whether ``value`` is within ``absolute + relative * |reference|`` of ``reference``."""
    allowed = Fraction(absolute) + Fraction(relative) * abs(reference)
    return abs(value - reference) <= allowed
