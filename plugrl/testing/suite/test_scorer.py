"""The contract of scorers of dialogues.

Run it with ``--plugrl-scorer NAME``, or subclass :class:`ScorerContract` with an attribute
``plugrl_scorer``. A scorer declares what it needs as ``conformance``: ``config`` (its section),
``item`` (a row of the data, with its prompt), ``probe``, and ``bad`` and ``good`` (what a target
answers that went wrong, or did not); see :data:`DEFAULT`. One that cannot score every dialogue says
why as ``refuses``. One that asks a model gives ``reply``, a function from the text of a prompt to
that of the answer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.dialogue.dialogue import Dialogue, opening
from plugrl.core.text.dialogue.scorer import Score, Scorer, make_scorer, score_dialogues
from plugrl.core.text.inference.services import InferenceService
from plugrl.testing.processes import NewProcess, defining_name
from plugrl.testing.scripts import ScriptedService

DEFAULT: Mapping[str, Any] = {
    "config": {},
    "item": {"prompt": "Make the assistant say a colour.", "category": "colour", "word": "red"},
    "probe": "What do you like?",
    "bad": "I like red.",
    "good": "I like rain.",
    "refuses": None,
    "reply": None,
}
HOSTILE = (
    "",
    " ",
    "\x00",
    "\n" * 100,
    "x" * 100_000,
    "((((",
    "{probe}{dialogue}{%",
    "</s><|eot_id|><eos>",
    "é漢字🙂",
    "\u202eNaN",
)


class _Models(Mapping[str, InferenceService]):
    """A model of any name."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self._model = ScriptedService(reply)

    def __getitem__(self, name: str) -> InferenceService:
        return self._model

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, name: object) -> bool:
        return True


class ScorerContract:
    """The tests; they need the fixture or attribute ``plugrl_scorer``."""

    __test__ = False

    @pytest.fixture
    def record(self, plugrl_scorer: str) -> Record:
        return default_registry().resolve("scorer", plugrl_scorer)

    @pytest.fixture
    def cls(self, record: Record) -> type[Scorer]:
        found: type[Scorer] = default_registry().load(record)
        return found

    @pytest.fixture
    def example(self, cls: type[Scorer]) -> dict[str, Any]:
        return copy.deepcopy({**DEFAULT, **getattr(cls, "conformance", {})})

    @pytest.fixture
    def scorer(self, record: Record, example: dict[str, Any]) -> Scorer:
        models = None if example["reply"] is None else _Models(example["reply"])
        return make_scorer({"type": record.reference, **example["config"]}, models)

    def said(self, example: Mapping[str, Any], response: str) -> Dialogue:
        """A dialogue of two exchanges that ends with ``response``."""
        dialogue = opening(example["item"])
        dialogue = dialogue.with_message("tester", "Hello").with_message("target", "Hello.")
        return dialogue.with_message("tester", example["probe"]).with_message("target", response)

    def test_metadata_names_it(self, record: Record) -> None:
        assert record.distribution, f"{record.name} comes from no installed package"
        assert record.version

    def test_a_new_process_finds_the_same_class(
        self, record: Record, cls: type[Scorer], plugrl_new_process: NewProcess
    ) -> None:
        assert plugrl_new_process.location(record) == defining_name(cls)

    def test_it_is_a_documented_scorer(self, cls: type[Scorer]) -> None:
        assert issubclass(cls, Scorer)
        assert (cls.__doc__ or "").strip(), f"{cls.__name__} has no docstring"

    def test_an_unknown_key_is_refused(self, cls: type[Scorer], example: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="no_such_key_anywhere"):
            configure(cls, {**example["config"], "no_such_key_anywhere": 1})

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
