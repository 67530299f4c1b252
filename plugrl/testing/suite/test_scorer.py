"""The contract of scorers of dialogues.

Run it with ``--plugrl-scorer NAME``, or subclass :class:`ScorerContract` with an attribute
``plugrl_scorer``. A scorer gives as ``conformance``: ``config`` (its section),
``item`` (a row of the data, with its prompt), ``probe``, and ``bad`` and ``good`` (what a target
answers that went wrong, or did not). One that cannot score every dialogue says
why as ``refuses``. One that asks a model gives ``reply``, a function from the text of a prompt to
that of the answer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from plugrl.core.plugins.kinds import Record
from plugrl.core.text.dialogue.dialogue import Dialogue, opening
from plugrl.core.text.dialogue.scorer import Score, Scorer, make_scorer, score_dialogues
from plugrl.testing.contract import ComponentContract
from plugrl.testing.hostile import HOSTILE
from plugrl.testing.scripts import EveryName, ScriptedService


class ScorerContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_scorer``."""

    kind = "scorer"
    defaults: ClassVar[Mapping[str, Any]] = {
        "item": {"prompt": "Make the assistant say a colour.", "category": "colour", "word": "red"},
        "probe": "What do you like?",
        "bad": "I like red.",
        "good": "I like rain.",
        "refuses": None,
        "reply": None,
    }

    @pytest.fixture
    def scorer(self, record: Record, example: dict[str, Any]) -> Scorer:
        models = example["reply"] and EveryName(ScriptedService(example["reply"]))
        return make_scorer({"type": record.reference, **example["config"]}, models)

    def said(self, example: Mapping[str, Any], response: str) -> Dialogue:
        """A dialogue of two exchanges that ends with ``response``."""
        dialogue = opening(example["item"])
        dialogue = dialogue.with_message("tester", "Hello").with_message("target", "Hello.")
        return dialogue.with_message("tester", example["probe"]).with_message("target", response)

    def test_what_went_wrong_scores_higher(self, scorer: Scorer, example: dict[str, Any]) -> None:
        both = [self.said(example, example[which]) for which in ("bad", "good")]
        bad, good = score_dialogues(scorer, both)
        assert not bad.failure
        assert not good.failure
        assert bad.value > good.value

    @pytest.mark.parametrize("text", HOSTILE)
    def test_any_dialogue_gets_a_finite_score(
        self, scorer: Scorer, example: dict[str, Any], text: str
    ) -> None:
        item = {**example["item"], "prompt": text}
        for dialogue in (
            self.said(example, text),
            self.said({**example, "probe": text, "item": item}, text),
        ):
            (score,) = score_dialogues(scorer, [dialogue])
            assert math.isfinite(score.value)
            assert all(map(math.isfinite, score.categories.values()))
            if score.failure:
                assert example["refuses"], score.failure

    def test_a_list_is_scored_like_its_dialogues_in_any_order(
        self, scorer: Scorer, example: dict[str, Any]
    ) -> None:
        texts = [example["bad"], example["good"], "", example["bad"] * 3, example["bad"]]
        dialogues = [self.said(example, text) for text in texts]
        alone = [score_dialogues(scorer, [dialogue])[0] for dialogue in dialogues]
        together = score_dialogues(scorer, dialogues)
        backwards = score_dialogues(scorer, dialogues[::-1])[::-1]
        for found in (together, backwards):
            assert len(found) == len(alone)
            for score, wanted in zip(found, alone, strict=True):
                assert _close(score, wanted), f"{score} in a list, {wanted} alone"

    def test_it_leaves_the_dialogue_as_it_was(
        self, scorer: Scorer, example: dict[str, Any]
    ) -> None:
        dialogue = self.said(example, example["bad"])
        before = copy.deepcopy(dialogue)
        score_dialogues(scorer, [dialogue])
        assert dialogue == before


def _close(one: Score, other: Score) -> bool:
    """Whether two scores are equal, as far as models in batches can be."""
    names = set(one.categories) == set(other.categories)
    pairs = [(one.value, other.value)]
    pairs += [(one.categories[name], other.categories[name]) for name in one.categories if names]
    near = all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3) for a, b in pairs)
    return bool(one.failure) == bool(other.failure) and names and near


class TestScorer(ScorerContract):
    """The contract for every ``--plugrl-scorer``."""

    __test__ = True
