"""The scenario ``code_validation``: is a program right? Half of them have a bug."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.sandboxes import make_sandbox, with_remedy
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance
from plugrl.scenarios.code_validation.apps import AppsOptions, first_of, read_apps
from plugrl.scenarios.code_validation.bank import PROBLEMS
from plugrl.scenarios.code_validation.examination import ExaminedProblem, Program, examine_problems

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

#: Seed of what must be the same in every run: which problems are held out, and their programs.
_FIXED = 20_251_128


@dataclass
class CodeValidationConfig:
    """Which programs. The held-out ones do not depend on the seed."""

    train: int | None = described(
        None, "programs for training, half of them wrong; null: all", at_least=2, at_most=10**8
    )
    validation: int | None = described(
        96, "held-out programs, half of them wrong; null: all", at_least=2, at_most=10**8
    )
    held_out: float = described(
        0.2, "share of the problems whose programs are held out", above=0, below=1
    )
    min_passed: float = described(
        0.05, "share of the tests that a wrong program passes, at least", at_least=0, below=1
    )
    renamings: int = described(
        4,
        "sets of variable names for each solution of a built-in problem",
        at_least=1,
        at_most=10**4,
    )
    data_files: list[str] = described([], "problems in APPS form, in place of the built-in ones")
    difficulty: str | None = described(None, "only problems of this difficulty, of data_files")
    max_problems: int | None = described(
        None, "the first problems of data_files; null: all", at_least=2, at_most=10**8
    )
    max_solutions: int = described(
        1, "right programs of a problem of data_files, and wrong ones", at_least=1, at_most=10**6
    )
    max_tests: int = described(
        8, "the first tests of a problem of data_files are run", at_least=1, at_most=10**6
    )
    seconds: float = described(2.0, "processor time of a test of data_files", above=0, at_most=1e8)
    truth_seconds: float = described(
        600.0, "time by the clock to run all programs", above=0, at_most=1e8
    )
    sandbox: Any = component("sandbox", "local", help="where programs of data_files run")
    unsafe: bool = described(False, "run them also where the sandbox cannot confine programs")

    def __post_init__(self) -> None:
        for name in ("train", "validation"):
            value = getattr(self, name)
            if value is not None and value % 2:
                raise ConfigError(f"{name} must be an even number, or null")
        if self.difficulty is not None and not self.data_files:
            raise ConfigError("difficulty needs data_files; built-in problems have none")


class CodeValidationScenario(Scenario):
    """Programs for problems; the label is 1 where the program is right.

    All programs are run in boxes when the task is built: right ones pass every test, wrong ones
    are mutants that fail one. No problem has programs on both sides of the line between held-out
    and training data, and every problem has as many right as wrong ones. Columns: ``question``,
    ``solution``, ``label``, ``answer`` (accept or reject), ``prompt`` with question and solution,
    ``problem``, ``passed`` (share of the tests) and ``change`` (what is wrong, where it is known).
    """

    Config: ClassVar[type] = CodeValidationConfig

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Whether programs can be run here."""
        if os.name != "posix":
            yield check.path, "programs can be run on Linux and other POSIX systems alone"
            return
        section = check.section
        fault = make_sandbox(section.sandbox).fault() if section.data_files else None
        if fault is not None and not section.unsafe:
            yield f"{check.path}.unsafe", with_remedy(fault)

    def build(self, seed: int) -> ScenarioInstance:
        """Run the programs, then split the problems.

        Raises:
            ConfigError: a file cannot be read, there are fewer programs than asked for, or
                running them takes too long.
            RunError: no box can be made.
        """
        problems = self._examined_problems()
        count = max(1, min(len(problems) - 1, round(self.config.held_out * len(problems))))
        if len(problems) < 2:
            raise ConfigError(
                f"scenario code_validation: {len(problems)} problems have right and wrong "
                "programs; give it two or more, one to be held out"
            )
        order = np.random.default_rng(_FIXED).permutation(len(problems))
        held, rest = sorted(order[:count]), sorted(order[count:])
        return ScenarioInstance(
            name="code_validation",
            datasets={
                "train": self._items([problems[i] for i in rest], "train", [seed]),
                "validation": self._items([problems[i] for i in held], "validation", [_FIXED]),
            },
        )

    def preview(self, seed: int) -> Mapping[str, Sequence[DataItem]]:
        """A problem of each split, without running its program."""
        if self.config.data_files:
            first = first_of(self.config.data_files, self._options())
        else:
            program = (Program(PROBLEMS[0].solutions[0].strip()),)
            first = ExaminedProblem(PROBLEMS[0].name, PROBLEMS[0].question, program, program)
        item = _item(first, first.right[0], 1)
        return {"train": [item], "validation": [item]}

    def _examined_problems(self) -> Sequence[ExaminedProblem]:
        config = self.config
        if config.data_files:
            sandbox = json.dumps(config.sandbox.to_dict())
            return _of_files(tuple(map(_identity, config.data_files)), self._options(), sandbox)
        return _built_in(config.renamings, config.min_passed, config.truth_seconds)

    def _options(self) -> AppsOptions:
        return AppsOptions(**{name: self.config[name] for name in AppsOptions.__slots__})

    def _items(
        self, problems: Sequence[ExaminedProblem], split: str, seed: Sequence[int]
    ) -> list[DataItem]:
        """Programs of ``problems`` in the order of ``seed``, as many right as wrong ones."""
        random = np.random.default_rng(seed)
        pairs = [pair for problem in problems for pair in _pairs(problem, random)]
        size = self.config[split]
        if size is not None and size > 2 * len(pairs):
            raise ConfigError(
                f"scenario code_validation: {split}={size} programs are more than the "
                f"{2 * len(pairs)} of its problems; ask for fewer, or give more problems"
            )
        chosen = [pairs[i] for i in random.permutation(len(pairs))][: (size or 2 * len(pairs)) // 2]
        items = [item for pair in chosen for item in pair]
        return [items[i] for i in random.permutation(len(items))]


@cache
def _built_in(renamings: int, min_passed: float, seconds: float) -> tuple[ExaminedProblem, ...]:
    """The built-in problems that have wrong programs, run once in a process."""
    found = examine_problems(PROBLEMS, renamings, min_passed, seconds)
    return tuple(each for each in found if each.wrong)


@lru_cache(maxsize=4)
def _of_files(
    files: tuple[tuple[str, int, int], ...], options: AppsOptions, sandbox: str
) -> list[ExaminedProblem]:
    """The examined problems of files, cached in the process until a file changes."""
    return read_apps([path for path, _, _ in files], options, json.loads(sandbox))


def _identity(path: str) -> tuple[str, int, int]:
    """The path, modification time and size of a file: a cache key that changes with it."""
    try:
        found = os.stat(path)
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_mtime_ns, found.st_size


def _pairs(
    problem: ExaminedProblem, random: np.random.Generator
) -> list[tuple[DataItem, DataItem]]:
    count = min(len(problem.right), len(problem.wrong))
    drawn = [
        [programs[i] for i in random.permutation(len(programs))[:count]]
        for programs in (problem.right, problem.wrong)
    ]
    return [
        (_item(problem, right, 1), _item(problem, wrong, 0))
        for right, wrong in zip(*drawn, strict=True)
    ]


def _item(problem: ExaminedProblem, program: Program, label: int) -> dict[str, Any]:
    return {
        "prompt": f"{problem.question}\n\n```python\n{program.text}\n```\n\nIs the program right?",
        "question": problem.question,
        "solution": program.text,
        "label": label,
        "answer": "accept" if label else "reject",
        "problem": problem.name,
        "passed": program.passed,
        "change": program.change,
    }
