"""Scorers that are made of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from plugrl.core.plugins.function_components import class_of
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score, Scorer


class FunctionScorer(Scorer):
    """A scorer made of a function, see :func:`as_scorer`."""

    function: ClassVar[Callable[..., Any]]
    _taken: ClassVar[int] = 1

    def score(self, dialogues: Sequence[Dialogue]) -> Sequence[Score | float]:
        """Call the function for each dialogue."""
        taken = type(self)._taken
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
    return class_of(value, FunctionScorer, FunctionScorer, ("dialogue", "scorer"))
