"""``Scorer``: how far a dialogue went wrong, as numbers, or the fact that it cannot be said."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from plugrl.core.component import Component
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, ContractError, PlugrlError, UsageError
from plugrl.core.plugins.user_code.error_location import (
    is_stop,
    location_suffix,
    one_line,
    raised_at,
)
from plugrl.core.plugins.user_code.function_components import component_class
from plugrl.core.text.dialogue.dialogue import Dialogue, Part
from plugrl.core.wording import bounded as shortened

if TYPE_CHECKING:
    from plugrl.core.factory import Factory
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.models import Models


#: The greatest number of single precision, in which losses are computed.
LARGEST = 3.4028234663852886e38


@dataclass(slots=True)
class Score:
    """What a scorer says of one dialogue.

    Attributes:
        value: how far the target went wrong; from 0 to 1 by convention, higher is worse.
        categories: the same by category, for scorers that have several.
        failure: why there is no score; then ``value`` and ``categories`` mean nothing.
    """

    value: float = 0.0
    categories: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass
class ScorerConfig:
    """Options of every scorer; a scorer's own ``Config`` derives from it."""

    reads: Part = described(
        "response", "what is scored: the last response, the last probe, both, or the whole dialogue"
    )

    def __post_init__(self) -> None:
        if self.reads not in get_args(Part):
            raise ConfigError(f"reads must be one of {', '.join(get_args(Part))}")


class Scorer(Component, ABC):
    """Scores dialogues; written for a list of them, so that a classifier works on batches."""

    Config: ClassVar[type] = ScorerConfig
    _models: Mapping[str, InferenceService] | None = None

    @abstractmethod
    def score(self, dialogues: Sequence[Dialogue]) -> Sequence[Score | float]:
        """One score for each of ``dialogues``, in their order; a number stands for its value.

        ``Score(failure="why")`` says that one of them could not be scored. When it raises, each
        dialogue is scored alone, and those that still raise have no score.
        """

    def use(self, models: Mapping[str, InferenceService]) -> None:
        """Take the models of the run, for scorers that ask one; see :meth:`model`."""
        self._models = models

    def combine(self, build: Callable[[str], Scorer]) -> None:
        """Build the scorers that this one is made of; called once, before it scores.

        Args:
            build: gives the scorer of a place in this one's own section, such as
                ``parts[0].scorer``.
        """

    @classmethod
    def possible_categories(
        cls, section: Mapping[str, Any], of: Callable[[str], Collection[str] | None]
    ) -> Collection[str] | None:
        """Names of all categories that its scores can have; None: that is not known.

        Args:
            section: the scorer's section.
            of: gives those of a scorer that this one is made of, by its place in the section.
        """
        return None

    def model(self, name: str) -> InferenceService:
        """The service that samples from a model of the run.

        Raises:
            UsageError: there are no models, or none of that name.
        """
        if self._models is None:
            raise UsageError(f"{type(self).__name__} asks model {name!r}, and there is no run")
        if name not in self._models:
            known = ", ".join(sorted(self._models)) or "none"
            raise UsageError(f"no model {name!r} for a scorer to ask; models are: {known}")
        return self._models[name]

    def texts(self, dialogues: Sequence[Dialogue]) -> list[str]:
        """The parts of ``dialogues`` that are scored."""
        return [dialogue.text(self.config.get("reads", "response")) for dialogue in dialogues]


class FunctionScorer(Scorer):
    """A scorer made of a function, see :func:`as_scorer`."""

    function: ClassVar[Callable[..., Any]]
    _parameter_count: ClassVar[int] = 1

    def score(self, dialogues: Sequence[Dialogue]) -> Sequence[Score | float]:
        """Call the function for each dialogue."""
        taken = type(self)._parameter_count
        return [self.function(*(dialogue, self)[:taken]) for dialogue in dialogues]


def as_scorer(value: Any) -> Any:
    """The scorer class of a function ``f(dialogue)``; others as is.

    The function returns a :class:`Score` or a number. With a second parameter it gets the scorer,
    for ``config``, ``texts`` and ``model``. One function always gives one class.

    Raises:
        TypeError: the function has other parameters, or is ``async``.
    """
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{value.__name__} is async; a scorer's function is a plain one")
    return component_class(value, FunctionScorer, FunctionScorer, ("dialogue", "scorer"))


def make_scorer(section: Any, models: Mapping[str, InferenceService] | None = None) -> Scorer:
    """The scorer of a section, or of a name alone, resolved in this process.

    Args:
        section: such as ``{"type": "lexicon", "words": ["red"]}``.
        models: by name, for scorers that ask one.

    Raises:
        PlugrlError: there is no such scorer, it cannot be loaded, or an option is wrong.
    """
    from plugrl.core.factory import make_component

    scorer: Scorer = make_component("scorer", section)
    if models is not None:
        scorer.use(models)
    scorer.combine(lambda place: make_scorer(_section_at(scorer.config, place), models))
    return scorer


def scorer_of_run(factory: Factory, section: Any, path: str, models: Models) -> Scorer:
    """The scorer that ``section`` at ``path`` picks, and those that it is made of.

    Raises:
        ConfigError: a section is wrong.
        PluginError: a constructor failed.
    """
    scorer: Scorer = factory.build("scorer", section, path)
    scorer.use(models.inference)
    scorer.combine(
        lambda place: scorer_of_run(factory, _section_at(section, place), f"{path}.{place}", models)
    )
    return scorer


def _section_at(section: Any, place: str) -> Any:
    from plugrl.core.config.preflight import section_at

    return section_at(section, place)


def score_dialogues(scorer: Scorer, dialogues: Sequence[Dialogue]) -> list[Score]:
    """The scores of ``dialogues`` by ``scorer``, checked.

    Raises:
        ContractError: it gave another number of scores than there are dialogues.
        PlugrlError: what it asked a model for shows a fault that must end the run.
    """
    if not dialogues:
        return []
    try:
        answer = scorer.score(list(dialogues))
    except PlugrlError:
        raise
    except BaseException as error:
        if is_stop(error):
            raise
        if len(dialogues) > 1:
            return [score_dialogues(scorer, [dialogue])[0] for dialogue in dialogues]
        place = raised_at(error)
        at = f" ({place})" if place else ""
        return [Score(failure=f"{type(scorer).__name__} raised {one_line(error)}" + at)]
    name = _scorer_label(scorer)
    if not isinstance(answer, Sequence) or isinstance(answer, (str, bytes)):
        raise ContractError(f"{name} returned {type(answer).__name__}; a list is expected")
    if len(answer) != len(dialogues):
        raise ContractError(
            f"{name} returned {len(answer)} scores for {len(dialogues)} dialogues; one for each "
            "is expected, Score(failure=...) where there is none"
        )
    return [_validate_score(score, name) for score in answer]


def _scorer_label(scorer: Scorer) -> str:
    """What messages call a scorer: its method, or its function, with the file and line."""
    function = getattr(type(scorer), "function", None)
    if function is not None:
        return f"{type(scorer).__name__}{location_suffix(function)}"
    return f"{type(scorer).__name__}.score{location_suffix(type(scorer).score)}"


def _validate_score(score: Any, name: str) -> Score:
    """``score`` with plain finite numbers, or the fact that it is none."""
    if not isinstance(score, Score):
        score = Score(score)
    if score.failure:
        return Score(
            failure=" ".join(shortened(str(score.failure)).split()) or "no reason is given"
        )
    try:
        value = float(score.value)
        categories = {str(key): float(number) for key, number in score.categories.items()}
    except (TypeError, ValueError, AttributeError):
        return Score(failure=f"{name} returned {score.value!r:.40}; a number or Score is expected")
    for what, number in (("value", value), *categories.items()):
        if not abs(number) <= LARGEST:
            return Score(failure=f"{name} returned {what} {number:g}; {number_fault(number)}")
    return Score(value, categories)


def number_fault(number: float) -> str:
    """What is expected in place of a number that losses cannot be made of."""
    if math.isfinite(number):
        return f"a number below {LARGEST:.1e} is expected"
    return "a finite number is expected"
