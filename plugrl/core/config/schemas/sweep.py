"""The section ``sweep``: the values that ``plugrl sweep --with`` searches, and what for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class ParameterConfig:
    """The values that one key may take."""

    type: Literal["float", "int", "choice"] = described(
        "float", "float or int: a number from low to high; choice: one of values"
    )
    low: float | None = described(None, "smallest number", at_least=-1e11, at_most=1e11)
    high: float | None = described(None, "largest number", at_least=-1e11, at_most=1e11)
    log: bool = described(False, "draw the logarithm evenly, for numbers of several magnitudes")
    values: list[Any] = described([], "what a choice chooses from: numbers, texts, true, null")

    def __post_init__(self) -> None:
        if self.type == "choice":
            self._check_choice()
        else:
            self._check_range()

    def _check_choice(self) -> None:
        if self.low is not None or self.high is not None or self.log:
            raise ConfigError("a choice has values, and neither low nor high nor log")
        if not self.values:
            raise ConfigError("a choice needs values, such as [32, 64]")
        for value in self.values:
            if not isinstance(value, (str, int, float, bool, type(None))):
                raise ConfigError(f"values has {value!r:.60}; write numbers, texts, true or null")
        if len({(type(value), value) for value in self.values}) < len(self.values):
            raise ConfigError("values has one value twice; write each once")

    def _check_range(self) -> None:
        if self.values:
            raise ConfigError(f"values are of a choice; give a {self.type} low and high")
        if self.low is None or self.high is None:
            raise ConfigError(f"a {self.type} needs low and high")
        if not self.low < self.high:
            raise ConfigError(f"low is {self.low:g}, which is not below high, {self.high:g}")
        if self.log and self.low <= 0:
            raise ConfigError(f"log needs a low above 0, not {self.low:g}")
        if self.type == "int" and not (self.low % 1 == 0 == self.high % 1):
            raise ConfigError("low and high of an int are whole numbers")

    def ends(self) -> list[Any]:
        """The values that show whether a key takes all of them: both ends, or every choice."""
        if self.type == "choice":
            return list(self.values)
        low, high = self.low or 0.0, self.high or 0.0
        return [int(low), int(high)] if self.type == "int" else [low, high]

    def holds(self, value: Any) -> bool:
        """Whether the key may take ``value``."""
        if self.type == "choice":
            return value in self.values
        low, high = self.low or 0.0, self.high or 0.0
        number = isinstance(value, int if self.type == "int" else (int, float))
        return number and math.isfinite(value) and low <= value <= high


@dataclass
class SweepConfig:
    """What `plugrl sweep CONFIG --with SEARCHER` searches; other commands do not read it."""

    space: dict[str, ParameterConfig] = described(
        {}, "by key of the configuration, such as rl.lr, the values that it may take"
    )
    metric: str | None = described(
        None, "what is searched for; null: the reward or return of the validation"
    )
    direction: Literal["maximize", "minimize"] = described(
        "maximize", "whether the best metric is the largest or the smallest"
    )
    searcher: dict[str, Any] = described({}, "options of the searcher, such as pruner")
