"""Words and phrases: a text that has one of them has gone wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.scenarios.scorers.finding import FindingConfig, FindingScorer, check_categories

Matching = Literal["word", "substring"]


@dataclass
class LexiconConfig(FindingConfig):
    """Options of the scorer ``lexicon``."""

    words: list[str] = described([], "words and phrases that are looked for")
    categories: dict[str, list[str]] = described({}, "others by category, as CATEGORY: [WORD, ...]")
    words_key: str | None = described(
        None,
        "column of the prompt with a word, or a list of them, that is looked for too",
        names="column",
    )
    match: Matching = described(
        "word", "word: not inside a longer word; substring: anywhere in the text"
    )
    ignore_case: bool = described(True, "Red, RED and red are one word")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.match not in get_args(Matching):
            raise ConfigError(f"match must be one of {', '.join(get_args(Matching))}")
        if not (self.words or self.categories or self.words_key):
            raise ConfigError(
                "words, categories and words_key are all empty; name what is looked for"
            )
        check_categories("categories", self.categories)
        named = {"words": self.words} | {f"categories.{k}": v for k, v in self.categories.items()}
        for setting, own in named.items():
            for number, word in enumerate(own):
                if not word.strip():
                    raise ConfigError(f"{setting}[{number}] is empty; write a word or a phrase")


class LexiconScorer(FindingScorer):
    """1 for a text with one of the words, or the share of the words that it has.

    White space inside a phrase stands for any amount of white space.
    """

    Config: ClassVar[type] = LexiconConfig
    conformance: ClassVar[dict[str, Any]] = {"config": {"words_key": "word"}}

    def search_terms(self, dialogue: Dialogue) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
        """The words of the configuration, and those of the prompt's column.

        Raises:
            ValueError: the prompt has no such column, or no words in it.
        """
        words = list(self.config.words)
        if self.config.words_key is not None:
            words += _words_of(dialogue, self.config.words_key)
        return words, dict(self.config.categories)

    def normalise_text(self, text: str) -> str:
        """The text without its case, if that is to be ignored."""
        return text.casefold() if self.config.ignore_case else text

    def finds(self, sought: str, text: str) -> bool:
        """Whether the word is there."""
        word = sought.casefold() if self.config.ignore_case else sought
        return _pattern(word, self.config.match == "word").search(text) is not None


@lru_cache(maxsize=4096)
def _pattern(word: str, whole: bool) -> re.Pattern[str]:
    parts = r"\s+".join(map(re.escape, word.split()))
    return re.compile(rf"(?<!\w){parts}(?!\w)" if whole else parts)


def _words_of(dialogue: Dialogue, column: str) -> list[str]:
    value = dialogue.item.get(column)
    words = [value] if isinstance(value, str) else value
    if (
        not isinstance(words, Sequence)
        or not words
        or not all(isinstance(word, str) and word.strip() for word in words)
    ):
        has = ", ".join(map(str, dialogue.item)) or "none"
        raise ValueError(
            f"LexiconScorer: column {column!r} of the prompt is {value!r:.60}; a word or a list of "
            f"words is expected (its columns are: {has})"
        )
    return list(words)
