"""What scorers that look for things in a text share: categories, shares, failures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score, Scorer, ScorerConfig

#: How what was found becomes a number.
Counting = Literal["any", "share"]


@dataclass
class FindingConfig(ScorerConfig):
    """Options of scorers that look for things in a text."""

    count: Counting = described(
        "any", "any: 1 as soon as one is found; share: how many of those sought are found"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count not in get_args(Counting):
            raise ConfigError(f"count must be one of {', '.join(get_args(Counting))}")


class FindingScorer(Scorer):
    """Looks for things in a text, some of them by category."""

    def share(self, sought: Iterable[Any], text: str) -> float:
        """1.0 or 0.0, or the share of ``sought`` that is in ``text``; 0.0 of nothing."""
        found = [self.finds(each, text) for each in sought]
        if self.config.count == "any":
            return float(any(found))
        return sum(found) / len(found) if found else 0.0

    @classmethod
    def possible_categories(
        cls, section: Mapping[str, Any], of: Callable[[str], Collection[str] | None]
    ) -> Collection[str] | None:
        """Those of its section."""
        own: Mapping[str, Any] = section["categories"]
        return own.keys()

    @abstractmethod
    def finds(self, sought: Any, text: str) -> bool:
        """Whether one of the things is there."""

    @abstractmethod
    def search_terms(self, dialogue: Dialogue) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
        """What is looked for: without a category, and by category.

        Raises:
            ValueError: the dialogue does not say it.
        """

    def normalise_text(self, text: str) -> str:
        """The text in the form in which things are looked for."""
        return text

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        """One score each; a category's is in ``categories``, and all of them make the value."""
        texts = self.texts(dialogues)
        return [self._one(*pair) for pair in zip(dialogues, texts, strict=True)]

    def _one(self, dialogue: Dialogue, text: str) -> Score:
        try:
            general, by_category = self.search_terms(dialogue)
            text = self.normalise_text(text)
            everything = list(dict.fromkeys([*general, *_all(by_category)]))
            categories = {name: self.share(own, text) for name, own in by_category.items()}
            return Score(self.share(everything, text), categories)
        except (ValueError, TimeoutError) as error:
            return Score(failure=str(error))


def _all(by_category: Mapping[str, Sequence[Any]]) -> Iterable[Any]:
    return (each for own in by_category.values() for each in own)


def check_categories(setting: str, categories: Mapping[str, Sequence[str]]) -> None:
    """Refuse categories of which a score could say nothing.

    Raises:
        ConfigError: a category has no name or nothing to look for.
    """
    for name, own in categories.items():
        if not name:
            raise ConfigError(f"{setting} has a category without a name; give it one")
        if not own:
            raise ConfigError(f"{setting}.{name} is empty; give it something to look for")
