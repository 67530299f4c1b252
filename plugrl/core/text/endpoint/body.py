"""Reading the JSON of a request: each parameter with its type, and none left unread."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from plugrl.core.text.endpoint.faults import ApiError, invalid, unsupported
from plugrl.core.text.endpoint.messages import checked_text
from plugrl.core.wording import did_you_mean

#: Spellings of what may be half of a surrogate pair.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


class Body:
    """The parameters of one request; ``null`` is as if the parameter were absent.

    Args:
        data: the bytes that were sent.

    Raises:
        ApiError: they are no JSON object.
    """

    def __init__(self, data: bytes) -> None:
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            raise ApiError(400, "the body is no JSON", None, "invalid_json") from None
        if not isinstance(values, dict):
            raise ApiError(400, "the body is no JSON object", None, "invalid_json")
        self._suspect = _SURROGATE.search(data) is not None
        self._values = {name: value for name, value in values.items() if value is not None}
        self._known: set[str] = set()

    def take(self, name: str) -> Any:
        """The value of a parameter as it is; None: absent."""
        self._known.add(name)
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """A parameter that is text."""
        value: str | None = self._take_typed(name, "text", lambda value: isinstance(value, str))
        return value

    def flag(self, name: str, *, absent: bool = False) -> bool:
        """A parameter that is true or false; ``absent`` where it is not there."""
        value = self._take_typed(name, "true or false", lambda value: isinstance(value, bool))
        return absent if value is None else bool(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number within bounds."""
        found: int | None = self._take_typed(
            name,
            f"a whole number from {low} to {high}",
            lambda value: type(value) is int and low <= value <= high,
        )
        return found

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number within bounds."""

        def fits(value: Any) -> bool:
            # Whole numbers may be too large for a float, and NaN is within no bounds.
            return type(value) in (int, float) and low <= value <= high

        value = self._take_typed(name, f"a number from {low:g} to {high:g}", fits)
        return None if value is None else float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """One text or a list of them, none empty."""

        def fits(value: Any) -> bool:
            several = value if isinstance(value, list) else [value]
            return len(several) <= most and all(isinstance(t, str) and t for t in several)

        value = self._take_typed(name, f"text, or a list of at most {most} texts, none empty", fits)
        return (value,) if isinstance(value, str) else tuple(value or ())

    def neutral(self, name: str, *values: Any, reason: str) -> None:
        """Refuse a parameter unless its value changes nothing."""
        value = self.take(name)
        if value is None:
            return
        if not any((type(value) is type(v) and value == v) or _equal(value, v) for v in values):
            raise unsupported(name, f"{name} is not supported: {reason}; leave it out")

    def finish(self) -> None:
        """Refuse what nobody has read, and text that cannot be written.

        Raises:
            ApiError: a parameter is unknown, or holds half of a surrogate pair.
        """
        for name in self._values:
            if name not in self._known:
                short = name[:64]
                close = did_you_mean(short, sorted(self._known), 1)
                raise ApiError(
                    400, f"unknown parameter {short!r}{close}", short, "unknown_parameter"
                )
        for name, value in self._values.items() if self._suspect else ():
            checked_text(json.dumps(value, ensure_ascii=False), name)

    def _take_typed(self, name: str, expected: str, fits: Callable[[Any], bool]) -> Any:
        value = self.take(name)
        if value is not None and not fits(value):
            raise invalid(name, f"{name} is {_describe(value)}; {expected} is expected")
        return value


def _equal(value: Any, other: Any) -> bool:
    numbers = (int, float)
    return type(value) in numbers and type(other) in numbers and bool(value == other)


def _describe(value: Any) -> str:
    if isinstance(value, (Mapping, list)):
        return "an object" if isinstance(value, Mapping) else "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
