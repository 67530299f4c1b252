"""The models of red-teaming, a few hundred weights each, and prompts for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.language_models import LanguageModelSystem
from plugrl.core.text.dialogue.scorer import Score, Scorer
from plugrl.testing.models import SOURCE

PROMPTS: Sequence[Mapping[str, Any]] = tuple(
    {"prompt": text, "category": "colour"} for text in ("Red?", "Blue?", "Green?")
)
_LONG = {**SOURCE, "config": {**SOURCE["config"], "max_position_embeddings": 256}}
_SECTION = {
    "tester": {"max_new_tokens": 6, "form": "plain"},
    "target": {"max_new_tokens": 6, "form": "plain"},
    "baseline": "baseline",
}


class LetterScorer(Scorer):
    """How often the letters a to m are in a response: what random models differ in."""

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        """Between 0 and 1."""
        texts = self.texts(dialogues)
        return [Score(sum("a" <= c <= "m" for c in text) / (len(text) + 1)) for text in texts]


def make_system(seed: int = 0, *, values: bool = False) -> LanguageModelSystem:
    """Tester, target and baseline; ``values``: the tester has a value head."""
    train = {"type": "local", "learning_rate": 0.01, "value_head": values}
    models = {
        "tester": {"source": _LONG, "train": train},
        "target": {"source": _LONG},
        "baseline": {"source": _LONG},
    }
    return LanguageModelSystem.load(models, _SECTION, seed=seed)
