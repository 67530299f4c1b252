"""What a program or a function says about its attempt: an answer, a reward, metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_KEYS = {"answer", "reward", "metrics"}


class OutcomeError(ValueError):
    """What was said cannot be used; the text says what and what is expected."""


@dataclass(frozen=True)
class AttemptOutcome:
    """What became of an attempt, as far as its program says.

    Attributes:
        answer: the final one; None: what the model said last.
        reward: None: it says nothing.
    """

    answer: str | None = None
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def of_value(value: Any) -> AttemptOutcome:
    """What a function returned: nothing, an answer, a reward, or a mapping of both.

    Raises:
        OutcomeError: something else.
    """
    if value is None:
        return AttemptOutcome()
    if isinstance(value, str):
        return AttemptOutcome(answer=value)
    if not isinstance(value, Mapping):
        return AttemptOutcome(reward=_number(value, "the result"))
    strange = [key for key in value if key not in _KEYS]
    if strange:
        raise OutcomeError(
            f"{str(strange[0])[:64]!r} is unknown; answer, reward and metrics are possible"
        )
    answer, reward = value.get("answer"), value.get("reward")
    if answer is not None and not isinstance(answer, str):
        raise OutcomeError(f"the answer is {type(answer).__name__}; text is expected")
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, Mapping):
        raise OutcomeError("metrics is no object of numbers")
    return AttemptOutcome(
        answer,
        None if reward is None else _number(reward, "the reward"),
        {str(name): _number(number, f"metric {name!r}") for name, number in metrics.items()},
    )


def of_output(text: str) -> AttemptOutcome:
    """What the last line of a program's output says that is a JSON object with one of these keys.

    Programs print other things too, so that other objects are left alone.

    Raises:
        OutcomeError: its values cannot be used.
    """
    for line in reversed(text.splitlines()):
        if not line.strip().startswith("{"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and _KEYS & set(value):
            try:
                return of_value(value)
            except OutcomeError as error:
                raise OutcomeError(f"in its last line, {error}") from None
    return AttemptOutcome()


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise OutcomeError(f"{what} is {type(value).__name__}; a number is expected") from None
    if not math.isfinite(number):
        raise OutcomeError(f"{what} is {number}; a finite number is expected")
    return number
