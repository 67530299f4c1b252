"""Problems whose programs have been run, so that it is known which are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plugrl.core.errors import RunError
from plugrl.scenarios.code_validation.mutants import Mutant, mutants
from plugrl.scenarios.code_validation.problem import Problem
from plugrl.scenarios.code_validation.renaming import rename_variables
from plugrl.scenarios.code_validation.truth import Deadline, answers, in_parallel, share


@dataclass(frozen=True, slots=True)
class Program:
    """A program that has been run.

    Attributes:
        text: its source.
        passed: the share of its tests that it passed; right ones passed all.
        change: what is wrong in it, ``line 3: i < n  ->  i <= n``; empty where it is not known,
            and for right ones.
    """

    text: str
    passed: float = 1.0
    change: str = ""


@dataclass(frozen=True, slots=True)
class ExaminedProblem:
    """A problem with programs that are right and others that are wrong.

    Attributes:
        name: what tells the problem apart.
        question: what programs must do.
        right: those that passed all tests.
        wrong: those that failed one and passed others.
    """

    name: str
    question: str
    right: tuple[Program, ...]
    wrong: tuple[Program, ...]


def examine_problems(
    problems: Sequence[Problem], renamings: int, min_passed: float, seconds: float
) -> tuple[ExaminedProblem, ...]:
    """Run all programs of ``problems``: their solutions with other names, and mutants of these.

    A mutant that passes all tests is left out, for nobody knows whether it is right; so is one
    that passes a smaller share than ``min_passed``, for it is too easy to tell.

    Args:
        problems: those that plugrl brings, or others like them.
        renamings: how often each solution gets other names.
        min_passed: the share of tests that a wrong program must pass.
        seconds: the time that all may take.

    Raises:
        ConfigError: they take longer.
        RunError: no box can be made, or solutions do not agree.
    """
    deadline = Deadline(seconds)

    def work(problem: Problem) -> ExaminedProblem:
        return _examine(problem, renamings, min_passed)

    return tuple(in_parallel(work, list(problems), deadline))


def _examine(problem: Problem, renamings: int, min_passed: float) -> ExaminedProblem:
    right, wrong = _candidates(problem, renamings)
    found = answers([*right, *(each.program for each in wrong)], problem.name, problem.cases())
    expected = _expected_outputs(problem, found[0])
    if any(answer != expected for answer in found[: len(right)]):
        raise RunError(
            f"scenario code_validation: the solutions of problem {problem.name!r} do not agree; "
            "correct the problem"
        )
    shares = [share(answer, expected) for answer in found[len(right) :]]
    kept = tuple(
        Program(mutant.program, passed, f"line {mutant.line}: {mutant.change}")
        for mutant, passed in zip(wrong, shares, strict=True)
        if min_passed <= passed < 1
    )
    return ExaminedProblem(problem.name, problem.question, tuple(map(Program, right)), kept)


def _candidates(problem: Problem, renamings: int) -> tuple[list[str], list[Mutant]]:
    """Solutions with other names, and their mutants, each mutation under one set of names only."""
    right: list[str] = []
    wrong: list[Mutant] = []
    name = list(problem.name.encode())
    for number, solution in enumerate(problem.solutions):
        own = [rename_variables(solution, (number, turn, *name)) for turn in range(renamings)]
        changed = [mutants(text) for text in own]
        order = np.random.default_rng([number, *name]).permutation(min(map(len, changed)))
        wrong += [changed[turn % renamings][place] for turn, place in enumerate(order)]
        right += own
    return list(dict.fromkeys(right)), wrong


def _expected_outputs(problem: Problem, found: str) -> str:
    """What the first solution gave, which must be what the examples say."""
    said = [json.dumps(result, sort_keys=True) for _, result in problem.examples]
    if found.split("\n")[: len(said)] != said:
        raise RunError(
            f"scenario code_validation: a solution of problem {problem.name!r} does not give what "
            "its examples say; correct the problem"
        )
    return found
