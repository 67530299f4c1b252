"""What a program may use, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["done", "raised", "time", "memory", "output", "files", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
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
class Outcome:
    """What came of a program.

    Attributes:
        verdict: ``done``: it came to its end, for a test: passed or answered. ``raised``: it ended
            with an exception, another exit code or, for a test, before the test was through, or
            what it answered is no data. Else the limit that it passed, or ``killed`` by a signal.
        output: what it printed, up to the limit.
        errors: the last lines of its standard error.
        value: what the function returned that was asked for, as JSON has it.
        kernel: what the kernel enforced: ``files``, ``calls``, both or neither.
        refused: the system calls that it was refused, up to 16, as far as the kernel tells.
    """

    verdict: Verdict
    output: str = ""
    errors: str = ""
    value: Any = None
    kernel: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
