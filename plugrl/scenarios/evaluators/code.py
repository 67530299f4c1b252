"""Code: a program is right when it passes the test cases of its problem."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, PlugrlDeprecationWarning
from plugrl.core.sandbox.jobs import ProgramLimits, ProgramOutcome
from plugrl.core.sandboxes import Programs, make_confined_sandbox, make_sandbox, with_remedy
from plugrl.core.text.data.files import first_problem
from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget, EvaluationRunResult, Evaluator
from plugrl.scenarios.evaluators.code_tests import Comparison, Test, read_tests

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

logger = logging.getLogger(__name__)
#: Nothing is looked at twice, however long a line is that opens a block and does not end.
_FENCE = re.compile(
    r"^[ \t]*+```[ \t]*+(\w*+)[^\n]*+\n(.*?)(?:^[ \t]*+```|\Z)", re.DOTALL | re.MULTILINE
)


@dataclass
class CodeConfig:
    """Options of the evaluator ``code``."""

    tests_key: str = described("tests", "column with the test cases", names="column")
    fence: Literal["prefer", "require", "ignore"] = described(
        "prefer", "the last ```python block of an answer: is the program if there is one, must be "
        "there, or is not looked for",
    )  # fmt: skip
    reward: Literal["all", "fraction"] = described(
        "all", "1 when all tests pass, else 0; or the share that passes"
    )
    compare: Literal["exact", "lines", "words"] = described(
        "lines", "how printed text is compared: exactly, without blanks at line ends, or by words"
    )
    tolerance: float = described(
        0.0, "numbers may differ by so much: results, and printed words", at_least=0, at_most=1e9
    )
    max_tests: int | None = described(None, "run only the first tests", at_least=1, at_most=10**6)
    seconds: float = described(5.0, "processor time of one test", above=0, at_most=1e8)
    wall_seconds: float = described(30.0, "time of one test by the clock", above=0, at_most=1e8)
    memory_mb: int = described(512, "address space of a program", at_least=1, at_most=10**8)
    file_kb: int = described(
        1024, "size of a file that a program writes", at_least=1, at_most=10**9
    )
    output_kb: int = described(256, "what a program may print", at_least=1, at_most=10**9)
    packages: bool = described(False, "let programs import installed packages, such as numpy")
    assertions: Literal["separate", "trusted"] = described(
        "separate", "assert code runs in a process of its own; or trusted, in the program's own, "
        "where it may use its objects, and programs can deceive it",
    )  # fmt: skip
    sandbox: Any = component("sandbox", "local", help="where programs run")
    unsafe: bool = described(False, "run also where the sandbox cannot confine programs")
    isolation: Literal["any", "kernel"] | None = described(
        None, "deprecated: any is unsafe=true, kernel the default"
    )
    files: int = described(64, "files and folders that a program makes", at_least=1, at_most=10**6)
    parallel: int | None = described(
        None, "tests that run at once; null: one for each processor", at_least=1, at_most=10**4
    )

    def __post_init__(self) -> None:
        if self.isolation is not None:
            other = "unsafe: true" if self.isolation == "any" else "nothing, it is the default"
            warnings.warn(
                f"isolation={self.isolation} of evaluator code goes away; write {other}",
                PlugrlDeprecationWarning,
                stacklevel=2,
            )


class CodeEvaluator(Evaluator):
    """Rewards a Python program that passes its tests, each in a sandbox of its own.

    Metrics: ``passed``, the share of tests, ``correct``, ``extracted``: whether there is a program,
    and ``timeouts``, the share of tests that passed a limit of time.
    """

    Config: ClassVar[type] = CodeConfig
    metric_names: ClassVar[Collection[str]] = ("passed", "correct", "extracted", "timeouts")
    conformance: ClassVar[dict[str, Any]] = {
        "data": {"prompt": "x", "answer": "", "tests": [{"input": "1", "output": "2"}]},
        "right": "```python\nprint(int(input()) + 1)\n```",
        "wrong": "```python\nprint(3)\n```",
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        limits = ProgramLimits(
            seconds=self.config.seconds,
            wall_seconds=self.config.wall_seconds,
            memory_mb=self.config.memory_mb,
            file_kb=self.config.file_kb,
            files=self.config.files,
            output_kb=self.config.output_kb,
            packages=self.config.packages,
        )
        sandbox = make_confined_sandbox(self.config.sandbox, unsafe=_is_unsafe(self.config))
        self._programs = Programs(sandbox, limits)
        self._comparison = Comparison(self.config.compare, self.config.tolerance)
        self._threads: ThreadPoolExecutor | None = None
        self._warned = False

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Whether the sandbox can confine programs here, and the first tests can be run."""
        section = check.section
        if os.name != "posix":
            yield check.path, "programs can be limited on Linux and other POSIX systems alone"
            return
        fault = None if _is_unsafe(section) else make_sandbox(section.sandbox).fault()
        if fault is not None:
            yield f"{check.path}.unsafe", with_remedy(fault)
        for origin, item in _first_problems(check):
            tests = item.get(section.tests_key)
            found = None if tests is None else _fault_of(tests, section.assertions == "trusted")
            if found is not None:
                setting, fault = found
                yield f"{check.path}.{setting}", f"{origin}: {fault}"

    async def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        """Run the program on its tests.

        Raises:
            KeyError: the problem has no tests.
            ValueError: its tests cannot be read.
            RunError: no box can be made.
        """
        tests = self._tests(data)[: self.config.max_tests]
        program = extract_program(evaluation_target.final_answer, self.config.fence)
        if program is None:
            metrics = {"passed": 0.0, "correct": 0.0, "extracted": 0.0, "timeouts": 0.0}
            return EvaluationRunResult(0.0, metrics=metrics)
        results = await self._run(tests, program)
        # Where one failure decides, tests after it are not run and count as failed.
        passed = sum(good for good, _ in results) / len(tests)
        late = sum(outcome.verdict == "time" for _, outcome in results) / len(tests)
        correct = float(passed == 1.0)
        return EvaluationRunResult(
            reward=correct if self.config.reward == "all" else passed,
            metrics={"passed": passed, "correct": correct, "extracted": 1.0, "timeouts": late},
            extra_info={
                "verdicts": [outcome.verdict for _, outcome in results],
                "refused": sorted({call for _, outcome in results for call in outcome.refused}),
            },
        )

    def _tests(self, data: Mapping[str, Any]) -> list[Test]:
        trusted = self.config.assertions == "trusted"
        return read_tests(data[self.config.tests_key], trusted=trusted)

    async def _run(self, tests: list[Test], program: str) -> list[tuple[bool, ProgramOutcome]]:
        loop = asyncio.get_running_loop()
        if self._threads is None:
            count = self.config.parallel or os.cpu_count() or 1
            self._threads = ThreadPoolExecutor(count, "plugrl-code")

        def run(test: Test) -> tuple[bool, ProgramOutcome]:
            return test.run(self._programs, program, self._comparison)

        if self.config.reward == "fraction":
            waiting = [loop.run_in_executor(self._threads, run, test) for test in tests]
            results = list(await asyncio.gather(*waiting))
        else:
            results = []
            for test in tests:
                results.append(await loop.run_in_executor(self._threads, run, test))
                if not results[-1][0]:
                    break
        self._warn(results[0][1].kernel)
        return results

    def _warn(self, enforced: tuple[str, ...]) -> None:
        if len(enforced) < 2 and _is_unsafe(self.config) and not self._warned:
            self._warned = True
            logger.warning(
                "evaluator code: unsafe=true, and the kernel confines %s of programs; the rest is "
                "refused by the interpreter, which hostile code gets around",
                " and ".join(enforced) or "nothing",
            )


def _first_problems(check: Preflight) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The first problem of each file or split, and what messages call it; others tell of faults."""
    with contextlib.suppress(ConfigError):
        for file in check.root.data.data_files:
            item = first_problem(file)
            if item is not None:
                yield f"the first problem of {file}", item
        for split, items in (check.scenario or {}).items():
            if items:
                yield f"the first problem of split {split!r}", items[0]


def _fault_of(tests: Any, trusted: bool) -> tuple[str, str] | None:
    """The option that does not suit the tests of a problem, and why; None: they can be run."""
    setting = "tests_key"
    try:
        read_tests(tests, trusted=True)
        setting = "assertions"
        read_tests(tests, trusted=trusted)
    except ValueError as error:
        return setting, str(error)
    return None


def _is_unsafe(section: Any) -> bool:
    return bool(section.unsafe) or section.isolation == "any"


def extract_program(text: str, fence: str = "prefer") -> str | None:
    """The program in an answer: its last fenced block of Python; None: there is none.

    A block that was cut off goes to the end of the text.
    """
    if fence != "ignore":
        blocks = [
            m for m in _FENCE.finditer(text) if m[1].lower() in ("", "python", "python3", "py")
        ]
        if blocks:
            return blocks[-1][2]
        if fence == "require":
            return None
    return text if text.strip() else None
