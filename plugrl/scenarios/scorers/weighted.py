"""Several scorers, whose values are added up with weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score, Scorer, ScorerConfig, score_dialogues
from plugrl.scenarios.evaluators.weights import check_row, check_rows, names_of, weights_of


@dataclass
class PartConfig:
    """One scorer, and what its value counts."""

    scorer: Any = component("scorer", help="what scores")
    weight: float = described(
        1.0, "its value counts this many times; 0: it is told alone", at_least=-1e6, at_most=1e6
    )
    name: str | None = described(None, "its name as a category; null: the scorer's type")

    def __post_init__(self) -> None:
        check_row(self, "scorer", "scores")


@dataclass
class WeightedScorerConfig(ScorerConfig):
    """Options of the scorer ``weighted``; each part says itself what it ``reads``."""

    parts: list[PartConfig] = described([], "scorers with their weights and names")
    normalize: bool = described(False, "divide by the sum of the weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rows("parts", self.parts, "scorer", normalize=self.normalize)
        if self.reads != "response":
            raise ConfigError(
                f"reads is {self.reads!r}, and each part reads for itself; set theirs"
            )
        if not any(weights_of(self.parts)):
            raise ConfigError("every weight is 0, so that every score would be; raise one")


class WeightedScorer(Scorer):
    """The sum of the values of several scorers, each times its weight.

    Categories: ``NAME``, the value of each part, and ``NAME/CATEGORY`` of what it has itself. When
    a part fails there is no score, because a sum without it would be another one; only a part of
    weight 0 is then left out.

    Args:
        config: its section.
        members: the scorers in the order of ``parts``, where no configuration builds them.
    """

    Config: ClassVar[type] = WeightedScorerConfig
    conformance: ClassVar[dict[str, Any]] = {
        "config": {
            "parts": [
                {"scorer": {"type": "lexicon", "words": ["red"]}, "weight": 0.8},
                {"scorer": {"type": "regex", "patterns": ["e"]}, "weight": 0.2},
            ]
        },
    }

    @classmethod
    def possible_categories(
        cls, section: Mapping[str, Any], of: Callable[[str], Collection[str] | None]
    ) -> Collection[str] | None:
        """The names of its parts, and their own categories."""
        found: set[str] = set()
        for number, name in enumerate(names_of(section["parts"], "scorer")):
            own = of(f"parts[{number}].scorer")
            if own is None:
                return None
            found |= {name, *(f"{name}/{category}" for category in own)}
        return found

    def __init__(self, config: Any = None, members: Sequence[Scorer] = ()) -> None:
        super().__init__(config)
        if members and len(members) != len(self.config.parts):
            raise UsageError(
                f"{len(members)} members for {len(self.config.parts)} parts; give one for each"
            )
        self._members = list(members)

    def combine(self, build: Callable[[str], Scorer]) -> None:
        """Build the members."""
        self._members = [build(f"parts[{i}].scorer") for i in range(len(self.config.parts))]

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        """Let each member score all dialogues, then add up.

        Raises:
            UsageError: there are no members yet.
        """
        if not self._members:
            raise UsageError(
                f"{type(self).__name__} has no members yet; build it by make_scorer, or give "
                "members=[...]"
            )
        columns = [score_dialogues(member, dialogues) for member in self._members]
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def _sum(self, row: Sequence[Score]) -> Score:
        names, total = names_of(self.config.parts, "scorer"), 0.0
        weights = weights_of(self.config.parts)
        categories: dict[str, float] = {}
        for name, weight, score in zip(names, weights, row, strict=True):
            if score.failure and weight:
                return Score(failure=f"of part {name!r}: {score.failure}")
            if score.failure:
                continue
            total += weight * score.value
            categories[name] = score.value
            categories |= {f"{name}/{key}": value for key, value in score.categories.items()}
        return Score(total / sum(weights) if self.config.normalize else total, categories)
