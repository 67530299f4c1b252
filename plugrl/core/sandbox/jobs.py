"""The job of running a program, its limits and its outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["done", "raised", "time", "memory", "output", "files", "killed"]


Mode = Literal["script", "function", "tests", "trusted_tests"]


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """A program, and how to run it.

    Attributes:
        program: untrusted Python source.
        mode: ``script``: run it as a script. ``function``: run it, then call one of its functions.
            ``tests``: test code calls its functions from another process. ``trusted_tests``: test
            code runs in the namespace of the program, which can deceive it.
        stdin: the standard input of a script.
        name: the function, or the method of its class ``Solution``.
        arguments: the arguments of the function, as JSON values.
        code: the test code.
    """

    program: str
    mode: Mode = "script"
    stdin: str = ""
    name: str = ""
    arguments: Sequence[Any] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """The resources that a program may use.

    Attributes:
        seconds: processor time.
        wall_seconds: wall-clock time, for programs that sleep and for busy machines.
        memory_mb: address space.
        file_kb: size of a file; all files together may have 16 times as much.
        files: number of files and folders.
        output_kb: size of its standard output, of its standard error and of its result, each.
        packages: whether it may import installed packages besides the standard library.
    """

    seconds: float = 5.0
    wall_seconds: float = 30.0
    memory_mb: int = 512
    file_kb: int = 1024
    files: int = 64
    output_kb: int = 256
    packages: bool = False


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """The outcome of a program.

    Attributes:
        verdict: ``done``: it ran to its end; with tests, it passed. ``raised``: it ended with an
            exception or another exit code than 0, or before its tests were finished, or its result
            is not plain data. Otherwise the limit that it exceeded, or ``killed`` by a signal.
        output: its standard output, up to the limit.
        errors: the last lines of its standard error.
        value: the result of the function that was called, as a JSON value.
        kernel: what the kernel enforced: ``files``, ``calls``, both or neither.
        refused: up to 16 system calls that were denied, if the kernel reports them.
    """

    verdict: Verdict
    output: str = ""
    errors: str = ""
    value: Any = None
    kernel: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class Runner(ABC):
    """Runs programs with fixed limits; safe to use from many threads."""

    @abstractmethod
    def run(self, job: ProgramJob) -> ProgramOutcome:
        """Run a job and return its outcome.

        Raises:
            RunError: no program can be run here.
        """

    def script(self, program: str, stdin: str = "") -> ProgramOutcome:
        """Run ``program`` as a script that reads ``stdin``."""
        return self.run(ProgramJob(program, stdin=stdin))

    def asserts(self, program: str, code: str, *, trusted: bool = False) -> ProgramOutcome:
        """Run ``program`` and test code that calls its functions; ``done`` means that it passed.

        Args:
            program: the program under test.
            code: the tests. They run in a process of their own with proxies of the program's
                functions, so that they compare plain values, never objects of the program.
            trusted: run the tests in the namespace of the program instead.
        """
        return self.run(ProgramJob(program, "trusted_tests" if trusted else "tests", code=code))

    def call(self, program: str, name: str, arguments: Sequence[Any]) -> ProgramOutcome:
        """Run ``program``, then its function ``name``, or that method of its ``Solution``."""
        return self.run(ProgramJob(program, "function", name=name, arguments=arguments))
