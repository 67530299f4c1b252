"""A program that is to be run, what it may use, and what came of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["done", "raised", "time", "memory", "output", "files", "killed"]


Mode = Literal["script", "function", "tests", "trusted_tests"]


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """A program, and what is asked of it.

    Attributes:
        program: Python source that nobody has read.
        mode: ``script``: it runs as one. ``function``: then one of its functions is called.
            ``tests``: test code calls its functions from another process. ``trusted_tests``: test
            code runs among its names, which it may deceive.
        stdin: what a script reads.
        name: the function, or the method of its class ``Solution``.
        arguments: what the function is called with, as JSON has it.
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
    """What a program may use.

    Attributes:
        seconds: processor time.
        wall_seconds: time by the clock, for programs that sleep and for busy machines.
        memory_mb: address space.
        file_kb: size of a file; all files together may have 16 times as much.
        files: number of files and folders.
        output_kb: what it may print; standard error may have as much, and a result too.
        packages: whether it may import what is installed besides the standard library.
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
    """What came of a program.

    Attributes:
        verdict: ``done``: it came to its end, for a test: passed or answered. ``raised``: it ended
            with an exception, another exit code or, for a test, before the test was through, or
            what it answered is no data. Else the limit that it passed, or ``killed`` by a signal.
        output: what it printed, up to the limit.
        errors: the last lines of its standard error.
        value: what the function returned that was called, as JSON has it.
        kernel: what the kernel enforced: ``files``, ``calls``, both or neither.
        refused: the system calls that it was refused, up to 16, as far as the kernel tells.
    """

    verdict: Verdict
    output: str = ""
    errors: str = ""
    value: Any = None
    kernel: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class Runner(ABC):
    """What runs programs, by the limits that it was made with; used from many threads."""

    @abstractmethod
    def run(self, job: ProgramJob) -> ProgramOutcome:
        """What came of a job.

        Raises:
            RunError: no program can be run here.
        """

    def script(self, program: str, stdin: str = "") -> ProgramOutcome:
        """Run ``program`` as a script that reads ``stdin``."""
        return self.run(ProgramJob(program, stdin=stdin))

    def asserts(self, program: str, code: str, *, trusted: bool = False) -> ProgramOutcome:
        """Run ``program``, and test code that calls its functions; ``done``: it came to its end.

        Args:
            program: what is tested.
            code: the tests. They run in a process of their own, in which the program's functions
                are stand-ins, so that values are compared and no objects of the program.
            trusted: whether they run among the names of the program instead.
        """
        return self.run(ProgramJob(program, "trusted_tests" if trusted else "tests", code=code))

    def call(self, program: str, name: str, arguments: Sequence[Any]) -> ProgramOutcome:
        """Run ``program``, then its function ``name``, or that method of its ``Solution``."""
        return self.run(ProgramJob(program, "function", name=name, arguments=arguments))
