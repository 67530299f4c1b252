"""What both sides do alike: the settings of PPO, the command line, and the report."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

#: When this process began, as far as Python can tell.
BEGAN = time.perf_counter()

EPOCHS = 4
LEARNING_RATE = 1e-3
GAMMA, LAMBDA = 0.99, 0.95
CLIP = 0.2
ENTROPY, CRITIC = 0.01, 0.5
MAX_NORM = 0.5
WIDTHS = [64, 64]  # of the policy and of the critic, with tanh


@dataclass(frozen=True)
class Given:
    """What a side is asked to do.

    Attributes:
        copies: of the environment.
        steps: of each copy in an iteration.
        minibatch: steps of one optimizer step.
        iterations: of the run; the first ``warm_up`` of them count for nothing.
        warm_up: iterations in which code is compiled and graphs are captured.
        device: where all happens.
        seed: of the run.
    """

    copies: int
    steps: int
    minibatch: int
    iterations: int
    warm_up: int
    device: str
    seed: int

    @property
    def batch(self) -> int:
        """The steps of an iteration."""
        return self.copies * self.steps

    def words(self) -> list[str]:
        """The command line that gives this."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in vars(self).items()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :class:`Given`."""
    parser.add_argument("--copies", type=int, default=4096, help="of the environment (4096)")
    parser.add_argument("--steps", type=int, default=32, help="of each in an iteration (32)")
    parser.add_argument("--minibatch", type=int, default=16384, help="steps (16384)")
    parser.add_argument("--iterations", type=int, default=60, help="of a run (60)")
    parser.add_argument("--warm-up", type=int, default=20, help="iterations that do not count (20)")
    parser.add_argument("--device", default="cuda", help="where all happens (cuda)")
    parser.add_argument("--seed", type=int, default=1, help="of the run (1)")


def given_by(parsed: argparse.Namespace) -> Given:
    """What a command line asks for."""
    return Given(**{name: getattr(parsed, name) for name in Given.__dataclass_fields__})


def arguments() -> Given:
    """The command line of a side."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return given_by(parser.parse_args())


class Clock:
    """Times the iterations behind the warm-up."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._iterations = 0
        self._first = self._began = 0.0

    def iteration(self) -> None:
        """An iteration is over, on the device too."""
        if self._given.device != "cpu":
            import torch

            torch.cuda.synchronize()
        self._iterations += 1
        if self._iterations == 1:
            self._first = time.perf_counter() - BEGAN
        if self._iterations == self._given.warm_up:
            self._began = time.perf_counter()

    def report(self, mean_return: float, **facts: Any) -> None:
        """Print what was measured, as a line of JSON."""
        counted = self._given.iterations - self._given.warm_up
        seconds = (time.perf_counter() - self._began) / counted
        print(
            json.dumps(
                {
                    "steps_per_second": self._given.batch / seconds,
                    "seconds_per_iteration": seconds,
                    "seconds_to_first_iteration": self._first,
                    "return": mean_return,
                    **facts,
                }
            ),
            flush=True,
        )
