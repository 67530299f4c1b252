"""Which programs are right: all are run in boxes, two at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from plugrl.core.errors import ConfigError
from plugrl.core.sandbox.box import Box
from plugrl.core.sandbox.jobs import ProgramLimits

#: Boxes that run at a time.
AT_ONCE = 2
_LINES = 4_000
_T = TypeVar("_T")
_R = TypeVar("_R")


class Deadline:
    """Bounds the time by the clock that a data set may take to be examined."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Go on while there is time.

        Raises:
            ConfigError: there is none left.
        """
        if time.monotonic() > self._end:
            raise ConfigError(
                f"scenario code_validation: running the programs took more than "
                f"truth_seconds={self._seconds:g}; raise it, or lower max_problems, max_solutions "
                "or max_tests"
            )


def in_parallel(work: Callable[[_T], _R], tasks: Sequence[_T], deadline: Deadline) -> list[_R]:
    """``work`` on each task, two at a time, in order.

    Raises:
        ConfigError: there was no time left for one of them.
    """

    def timed(task: _T) -> _R:
        deadline.check()
        return work(task)

    with _threads() as threads:
        return list(threads.map(timed, tasks))


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(AT_ONCE, "plugrl-truth")
    try:
        yield threads
    finally:
        # Whoever gives up waits for what runs, and not for what is still to come.
        threads.shutdown(cancel_futures=True)


def answers(programs: Sequence[str], function: str, cases: Sequence[Sequence[Any]]) -> list[str]:
    """What ``function`` of each program gives for all cases: texts that are equal where it agrees.

    A case in which it raises or runs 4,000 lines gives a word in place of JSON; see
    :func:`share`.

    Raises:
        RunError: no box can be made.
    """
    box = Box(ProgramLimits(seconds=20.0, wall_seconds=120.0))
    arguments = [json.dumps(list(case)) for case in cases]
    found = _run_programs(box, list(programs), function, arguments)
    return ["\n".join(each) for each in found]


def _run_programs(
    box: Box, programs: list[str], function: str, arguments: list[str]
) -> list[list[str]]:
    outcome = box.call(_judge(), "judge", [programs, function, arguments, _LINES])
    if outcome.verdict == "done":
        value: list[list[str]] = outcome.value
        return value
    if len(programs) == 1:
        return [["raised"] * len(arguments)]
    # One of them takes more memory or time than a box gives: each half in a box of its own.
    half = len(programs) // 2
    return [
        answer
        for part in (programs[:half], programs[half:])
        for answer in _run_programs(box, part, function, arguments)
    ]


def share(answer: str, expected: str) -> float:
    """The share of cases in which an answer is the expected one."""
    ours, theirs = answer.split("\n"), expected.split("\n")
    same = sum(a == b and b not in ("raised", "late") for a, b in zip(ours, theirs, strict=True))
    return same / len(theirs)


@cache
def _judge() -> str:
    return Path(__file__).with_name("judge.py").read_text(encoding="utf-8")
