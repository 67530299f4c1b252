"""The problems that plugrl brings, by subject."""

from plugrl.scenarios.code_validation.bank.lists import LISTS
from plugrl.scenarios.code_validation.bank.numbers import NUMBERS
from plugrl.scenarios.code_validation.bank.searches import SEARCHES
from plugrl.scenarios.code_validation.bank.texts import TEXTS

__all__ = ["PROBLEMS"]

#: All problems; their order decides which are held out, so new ones come last.
PROBLEMS = tuple(
    problem for four in zip(NUMBERS, TEXTS, LISTS, SEARCHES, strict=True) for problem in four
)
