"""Records of evaluated dialogues, and their outcomes, in values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from plugrl.core.text.dialogue.evaluation.success import Scores, first_success, succeeded
from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree


@dataclass(slots=True)
class Exchange:
    """A probe with its response.

    Attributes:
        probe: what the tester said.
        response: what the target answered.
        score: the scorer's value; None: there is none.
        categories: the same by the scorer's categories.
        failure: why there is no score.
    """

    probe: str
    response: str
    score: float | None = None
    categories: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(slots=True)
class EvaluatedDialogue:
    """A dialogue about one prompt, with its scores.

    Attributes:
        prompt: what the tester was told.
        category: of the prompt; empty where there is none.
        item: place of the prompt in what is evaluated on; attempts at it share it.
        attempt: which of them it is.
        seed: that it was grown with.
        exchanges: turn by turn.
    """

    prompt: str
    category: str = ""
    item: int = 0
    attempt: int = 0
    seed: int = 0
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def scores(self) -> Scores:
        """The scores of its exchanges; None: there is none."""
        return [exchange.score for exchange in self.exchanges]

    def success_turn(self, threshold: float) -> int | None:
        """The first exchange with at least that score, from 1 on; None: there is none."""
        return first_success(self.scores, threshold)

    @property
    def failure(self) -> str:
        """Why an exchange has no score; empty: each has one."""
        if not self.exchanges:
            return "no exchange took place"
        return next((e.failure for e in self.exchanges if e.score is None), "")

    def succeeded(self, threshold: float) -> bool | None:
        """Whether an exchange reached the threshold; None: one without a score might have."""
        return succeeded(self.scores, threshold)

    @property
    def highest(self) -> float | None:
        """The highest score of its exchanges; None: none has one."""
        return max((e.score for e in self.exchanges if e.score is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """A plain mapping, for :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> EvaluatedDialogue:
        """A dialogue of what :meth:`to_dict` gave.

        Raises:
            TypeError: it is something else.
            KeyError: the same.
        """
        exchanges = [Exchange(**exchange) for exchange in record["exchanges"]]
        made = cls(**{**record, "exchanges": exchanges})
        for exchange in exchanges:
            _check(exchange)
        texts, numbers = (made.prompt, made.category), (made.item, made.attempt, made.seed)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("prompt and category are texts")
        if not all(type(number) is int for number in numbers):
            raise TypeError("item, attempt and seed are whole numbers")
        return made


def _check(exchange: Exchange) -> None:
    """Refuse an exchange that no evaluation has written; dataclasses take anything."""
    texts = (exchange.probe, exchange.response, exchange.failure)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("probe, response and failure are texts")
    if not isinstance(exchange.categories, dict):
        raise TypeError("categories are named numbers")
    scores = [] if exchange.score is None else [exchange.score]
    for number in [*scores, *exchange.categories.values()]:
        if type(number) not in (int, float) or not math.isfinite(number):
            raise TypeError("scores are finite numbers")


def record_of(tree: RolloutTree, item: int = 0, attempt: int = 0) -> EvaluatedDialogue:
    """The record of a tree of width 1; of a wider one, that of its first dialogue."""
    exchanges = [_exchange(node) for node in next(iter(tree.paths()), [])]
    context = tree.context
    return EvaluatedDialogue(context.prompt, context.category, item, attempt, tree.seed, exchanges)


def _exchange(node: RolloutNode) -> Exchange:
    if not node.valid:
        return Exchange(node.probe, node.response, failure=node.failure)
    return Exchange(node.probe, node.response, node.score.value, dict(node.score.categories))
