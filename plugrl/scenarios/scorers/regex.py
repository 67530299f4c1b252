"""Regular expressions: a text that one of them matches has gone wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import regex

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.scenarios.evaluators.patterns import check_repeats, compiled_pattern, flags_of
from plugrl.scenarios.scorers.finding import FindingConfig, FindingScorer, check_categories


@dataclass
class RegexScorerConfig(FindingConfig):
    """Options of the scorer ``regex``."""

    patterns: list[str] = described([], "regular expressions that are searched for")
    categories: dict[str, list[str]] = described(
        {}, "others by category, as CATEGORY: [PATTERN, ...]"
    )
    ignore_case: bool = described(True, "match without regard to case")
    dotall: bool = described(True, "a dot in a pattern matches line breaks too")
    multiline: bool = described(False, "^ and $ match at the ends of lines too")
    time_limit: float = described(
        1.0, "seconds of processor time for one pattern on one text", above=0, at_most=1e8
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.patterns or self.categories):
            raise ConfigError("patterns and categories are both empty; name what is searched for")
        check_categories("categories", self.categories)
        check_patterns("patterns", self.patterns)
        for name, own in self.categories.items():
            check_patterns(f"categories.{name}", own)


def check_patterns(setting: str, patterns: Sequence[str]) -> None:
    """Refuse invalid regular expressions, and those that take too long to compile.

    Raises:
        ConfigError: names which, and why.
    """
    for number, pattern in enumerate(patterns):
        where = f"{setting}[{number}]"
        check_repeats(where, pattern)
        compiled_pattern(f"{where} {pattern!r:.60}", pattern)
        if not pattern:
            raise ConfigError(f"{where} is empty and matches every text; write a pattern")


class RegexScorer(FindingScorer):
    """1 for a text that one of the patterns matches, or the share of those that do.

    A pattern that takes longer than its time leaves the dialogue without a score.
    """

    Config: ClassVar[type] = RegexScorerConfig
    conformance: ClassVar[dict[str, Any]] = {
        "config": {"patterns": [r"\bred\b"], "categories": {"colour": ["red|blue"]}}
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        flags = flags_of(self.config)
        written = self.config
        self._patterns = [regex.compile(pattern, flags) for pattern in written.patterns]
        self._categories = {
            name: [regex.compile(pattern, flags) for pattern in own]
            for name, own in written.categories.items()
        }

    def search_terms(self, dialogue: Dialogue) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
        """The patterns of the configuration."""
        return self._patterns, self._categories

    def finds(self, sought: Any, text: str) -> bool:
        """Whether the pattern matches somewhere.

        Raises:
            TimeoutError: that took too long to say.
        """
        try:
            return sought.search(text, timeout=self.config.time_limit) is not None
        except TimeoutError:
            raise TimeoutError(
                f"RegexScorer: pattern {sought.pattern!r:.60} took more than "
                f"{self.config.time_limit:g} seconds on a text of {len(text)} characters"
            ) from None
