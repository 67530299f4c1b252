"""What both sides do alike: the reward, the numbers of a step, and how they report times.

It is imported by the environment of each side, so it needs the standard library only,
and torch where there is a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
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
    for name in ("prompts", "samples", "shortest", "tokens", "threads", "steps", "warm-up"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--compile", required=True, help="of plugrl's train service")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--lora", type=int, default=0, help="rank of an adapter; 0: all weights")
    parser.add_argument("--micro", type=int, default=0, help="rows of a pass of TRL; 0: all")
    return parser.parse_args()


def lengths(given: argparse.Namespace) -> Iterator[int]:
    """Tokens of each answer from the first one of the first step on, for both sides alike."""
    draw = random.Random(0)
    while True:
        yield draw.randint(given.shortest, given.tokens)


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
        self._phases: list[dict[str, float]] = []
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._began = (0.0, 0.0)

    def end(self, length: float | None = None, phases: dict[str, float] | None = None) -> None:
        """A step ends now.

        Args:
            length: the mean number of new tokens, if it is known yet.
            phases: seconds of the parts of the step, if they are known.
        """
        if self._given.device == "cuda":
            import torch

            torch.cuda.synchronize()
        self._phases += [] if phases is None else [phases]
        self._wall.append(time.perf_counter() - self._began[0])
        self._cpu.append(time.process_time() - self._began[1])
        self._lengths += [] if length is None else [length]
        print("done", file=self._out, flush=True)
        sys.stdin.readline()
        self._began = (time.perf_counter(), time.process_time())

    def report(self, means: list[float] | None = None) -> None:
        """Send the seconds of each step after the warm-up as one line of JSON.

        ``means`` are the mean numbers of new tokens of all steps, if they were not known before.

        Raises:
            SystemExit: an answer had another length, so the work was another one.
        """
        drawn, rows = lengths(self._given), self._given.prompts * self._given.samples
        for found in means or self._lengths:
            wanted = sum(next(drawn) for _ in range(rows)) / rows
            if abs(found - wanted) > 1e-3:
                raise SystemExit(f"answers of {found} tokens, not of {wanted}: not the work")
        facts = {
            "seconds": self._wall[self._given.warm_up :],
            "cpu_seconds": self._cpu[self._given.warm_up :],
            "phases": self._phases[self._given.warm_up :],
            "peak_gib": self._peak(),
            "versions": {name: _version(name) for name in PACKAGES},
        }
        print(json.dumps(facts), file=self._out, flush=True)

    def _peak(self) -> float | None:
        if self._given.device != "cuda":
            return None
        import torch

        return torch.cuda.max_memory_allocated() / 2**30


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
