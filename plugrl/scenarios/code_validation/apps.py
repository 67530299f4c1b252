"""Problems in files of the form in which the data set APPS has them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.sandbox.jobs import ProgramLimits, Runner
from plugrl.core.sandboxes import Programs, make_confined_sandbox
from plugrl.core.scenario import DataItem
from plugrl.core.text.data.files import place_of_problem, read_files
from plugrl.scenarios.code_validation.examination import ExaminedProblem, Program
from plugrl.scenarios.code_validation.mutants import mutants, normalise
from plugrl.scenarios.code_validation.truth import Deadline, in_parallel
from plugrl.scenarios.evaluators.code_tests import Comparison, Test, read_tests

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppsOptions:
    """What is taken of a file.

    Attributes:
        difficulty: the problems with this value in that column; None: all.
        max_problems: the first so many of them; None: all.
        max_solutions: right programs of a problem, and as many wrong ones.
        max_tests: the first so many tests of each problem are run.
        min_passed: the share of tests that a wrong program must pass.
        seconds: processor time of a test.
        truth_seconds: the time that all may take.
        unsafe: whether programs are run also where nothing confines them.
    """

    difficulty: str | None
    max_problems: int | None
    max_solutions: int
    max_tests: int
    min_passed: float
    seconds: float
    truth_seconds: float
    unsafe: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """A problem as a file has it."""

    name: str
    question: str
    tests: list[Test]
    solutions: list[str]
    wrong: list[str]


def read_apps(
    files: Sequence[str], options: AppsOptions, sandbox: Mapping[str, Any]
) -> list[ExaminedProblem]:
    """The problems of files, with programs that were run to know which are right.

    A row has ``question``, ``solutions`` and ``input_output``; ``problem_id``, ``difficulty`` and
    ``buggy_solutions`` may be there. Lists may be JSON text. Where a problem has too few wrong
    programs, mutants of its right ones are tried.

    Args:
        files: paths of them.
        options: what is taken.
        sandbox: the section that picks where programs run.

    Raises:
        ConfigError: a file or row cannot be read, no problem fits, the programs take too long, or
            nothing confines them.
        RunError: no box can be made.
    """
    rows = [
        _row(item, place_of_problem(item, n))
        for n, item in enumerate(_chosen_items(files, options))
    ]
    deadline = Deadline(options.truth_seconds)
    place = make_confined_sandbox(sandbox, unsafe=options.unsafe)
    box = Programs(place, ProgramLimits(seconds=options.seconds))

    def work(row: _Row) -> ExaminedProblem:
        return _examine(row, box, options, deadline)

    found = in_parallel(work, rows, deadline)
    usable = [each for each in found if each.right and each.wrong]
    if len(usable) < len(found):
        logger.warning(
            "scenario code_validation: %d of %d problems have no program that passes all tests, "
            "or none that fails, and are left out",
            len(found) - len(usable),
            len(found),
        )
    return usable


def first_of(files: Sequence[str], options: AppsOptions) -> ExaminedProblem:
    """The first problem of files, none of whose programs was run: both are its first solution."""
    item = _chosen_items(files, options)[0]
    row = _row(item, place_of_problem(item, 0))
    program = Program(row.solutions[0])
    return ExaminedProblem(row.name, row.question, (program,), (program,))


def _chosen_items(files: Sequence[str], options: AppsOptions) -> list[DataItem]:
    items = [
        item
        for item in read_files(files)
        if options.difficulty is None or item.get("difficulty") == options.difficulty
    ][: options.max_problems]
    if not items:
        wanted = f" of difficulty {options.difficulty!r}" if options.difficulty else ""
        raise ConfigError(
            f"scenario code_validation: {', '.join(map(str, files))} has no problem{wanted}; name "
            "another file or difficulty"
        )
    return items


def _row(item: DataItem, place: str) -> _Row:
    for column in ("question", "solutions", "input_output"):
        if not item.get(column):
            raise ConfigError(
                f"scenario code_validation: {place} has no {column}; problems have question, "
                "solutions and input_output"
            )
    try:
        tests = read_tests(item["input_output"])
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"scenario code_validation: input_output of {place}: {error}; write inputs and outputs"
        ) from None
    name = item.get("problem_id", item.get("id"))
    return _Row(
        place if name is None else str(name),
        str(item["question"]),
        tests,
        _programs(item["solutions"], "solutions", place),
        _programs(item.get("buggy_solutions") or [], "buggy_solutions", place),
    )


def _programs(value: Any, column: str, place: str) -> list[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if isinstance(value, list):
        texts = [v.get("solution") if isinstance(v, Mapping) else v for v in value]
        if all(isinstance(text, str) for text in texts):
            return texts
    raise ConfigError(
        f"scenario code_validation: {column} of {place} is no list of programs; write a list of "
        "texts, or JSON of one"
    )


def _examine(row: _Row, box: Runner, options: AppsOptions, deadline: Deadline) -> ExaminedProblem:
    tests = row.tests[: options.max_tests]

    def passed(program: str) -> float:
        deadline.check()
        good = [test.run(box, program, Comparison("words"))[0] for test in tests]
        return sum(good) / len(good)

    right: list[str] = []
    for program in _parse_programs(row.solutions):
        if len(right) < options.max_solutions and passed(program) == 1:
            right.append(program)
    candidates = [(program, "") for program in _parse_programs(row.wrong)]
    for number, program in enumerate(right):
        changed = mutants(program)
        order = np.random.default_rng([number, *row.name.encode()]).permutation(len(changed))
        # Most of the first ones fail a test; the others are for programs of which few matter.
        some = [changed[place] for place in order[: 4 * options.max_solutions]]
        candidates += [(m.program, f"line {m.line}: {m.change}") for m in some]
    # With one test a wrong program passes none.
    least = options.min_passed if len(tests) > 1 else 0.0
    wrong: list[Program] = []
    for program, change in candidates if right else []:
        if len(wrong) >= len(right):
            break
        share = passed(program)
        if least <= share < 1:
            wrong.append(Program(program, share, change))
    return ExaminedProblem(row.name, row.question, tuple(map(Program, right)), tuple(wrong))


def _parse_programs(programs: Sequence[str]) -> list[str]:
    """The programs that are Python of today, without comments and as mutants are laid out."""
    found = []
    for program in programs:
        try:
            found.append(normalise(program))
        except (SyntaxError, ValueError, RecursionError):
            continue
    return found
