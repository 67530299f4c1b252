"""``Problem``: what a function must do, programs that do it, and arguments to try them with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

_DRAWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A small problem of programming.

    Attributes:
        name: the function that solves it.
        question: what it must do; the arguments that it is never given are excluded here.
        solutions: different programs that solve it.
        draws: a rule for each argument: ``int LOW HIGH``, ``ints LOW HIGH SHORTEST LONGEST``,
            ``text LETTERS SHORTEST LONGEST`` (a ``_`` stands for a blank), ``words LETTERS
            SHORTEST LONGEST``, ``grid LOW HIGH SHORTEST LONGEST``; ``sorted`` before one of
            these sorts, ``rising`` also drops what is there already.
        examples: arguments, and what must come of them.
        inputs: more arguments, such as those at which mistakes show.
    """

    name: str
    question: str
    solutions: tuple[str, ...]
    draws: tuple[str, ...]
    examples: tuple[tuple[tuple[Any, ...], Any], ...]
    inputs: tuple[tuple[Any, ...], ...] = ()

    def cases(self) -> list[list[Any]]:
        """The arguments to try programs with, each once: examples, inputs and 40 drawn ones."""
        random = np.random.default_rng(list(self.name.encode()))
        drawn = [[_draw(rule, random) for rule in self.draws] for _ in range(_DRAWN)]
        given = [list(arguments) for arguments, _ in self.examples]
        every = [*given, *map(list, self.inputs), *drawn]
        return list({json.dumps(case): case for case in every}.values())


def _draw(rule: str, random: np.random.Generator) -> Any:
    sort, _, rest = rule.partition(" ")
    if sort == "sorted":
        return sorted(_draw(rest, random))
    if sort == "rising":
        return sorted(set(_draw(rest, random)))
    if sort in ("text", "words"):
        letters, shortest, longest = rest.split()
        size = int(random.integers(int(shortest), int(longest) + 1))
        if sort == "words":
            return [_draw(f"text {letters} 1 4", random) for _ in range(size)]
        return "".join(random.choice(list(letters), size).tolist()).replace("_", " ")
    low, high, *sizes = map(int, rest.split())
    if sort == "int":
        return int(random.integers(low, high + 1))
    shortest, longest = sizes
    size = int(random.integers(shortest, longest + 1))
    if sort == "grid":
        width = int(random.integers(shortest, longest + 1))
        return random.integers(low, high + 1, (size, width)).tolist()
    return random.integers(low, high + 1, size).tolist()
