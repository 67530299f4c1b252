"""What both sides do alike: the reward, the numbers of a step, and how they report times.

It is imported by the environment of each side, so it needs the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LEARNING_RATE = 1e-5
PACKAGES = ("plugrl", "trl", "transformers", "torch")


def reward(text: str) -> float:
    """A number that differs between nearly all texts, so that every sequence is trained on."""
    return sum(map(ord, text)) / 1000 / max(1, len(text))


def arguments() -> argparse.Namespace:
    """The command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="with model/ and prompts.jsonl")
    for name in ("prompts", "samples", "tokens", "threads", "steps", "warm-up"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


class Steps:
    """Times the steps of a side, which waits after each until the other side has made one.

    So both sides meet the same moments of a busy machine. Standard output is the line to the
    driver; what a library prints goes to standard error.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._wall: list[float] = []
        self._cpu: list[float] = []
        self._lengths: list[float] = []
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._began = (0.0, 0.0)

    def end(self, length: float | None = None) -> None:
        """A step ends now; ``length`` is the mean number of new tokens, if it is known yet."""
        self._wall.append(time.perf_counter() - self._began[0])
        self._cpu.append(time.process_time() - self._began[1])
        self._lengths += [] if length is None else [length]
        print("done", file=self._out, flush=True)
        sys.stdin.readline()
        self._began = (time.perf_counter(), time.process_time())

    def report(self, lengths: list[float] | None = None) -> None:
        """Send the seconds of each step after the warm-up as one line of JSON.

        Raises:
            SystemExit: an answer had another length, so the work was another one.
        """
        found = set(lengths or self._lengths)
        if found != {self._given.tokens}:
            raise SystemExit(f"answers of {min(found)} to {max(found)} tokens: not the work")
        facts = {
            "seconds": self._wall[self._given.warm_up :],
            "cpu_seconds": self._cpu[self._given.warm_up :],
            "versions": {name: _version(name) for name in PACKAGES},
        }
        print(json.dumps(facts), file=self._out, flush=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
