"""What both sides do alike: the reward, the numbers of a step, and how they report times.

It is imported by the environment of each side, so it needs the standard library only.
"""

from __future__ import annotations

import argparse
import itertools
import json
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


class Ends:
    """The times at which steps ended, on the wall and of this process's processor."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def note(self) -> None:
        """A step ends now."""
        self._wall.append(time.perf_counter())
        self._cpu.append(time.process_time())

    def report(self, given: argparse.Namespace, lengths: list[float]) -> None:
        """Print the seconds of each step after the warm-up as one line of JSON.

        Raises:
            SystemExit: an answer had another length, so the work was another one.
        """
        if set(lengths) != {given.tokens}:
            raise SystemExit(f"answers of {min(lengths)} to {max(lengths)} tokens: not the work")
        first = given.warm_up - 1
        facts = {
            "seconds": _differences(self._wall)[first:],
            "cpu_seconds": _differences(self._cpu)[first:],
            "versions": {name: _version(name) for name in PACKAGES},
        }
        print(json.dumps(facts))


def _differences(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
