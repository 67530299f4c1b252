"""What all sides do alike: the settings of PPO, the turns they take, and how they report times.

It is imported by the environment of each side, so it needs the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The moment this process began, as far as Python can tell, in wall and in processor time.
BEGAN = (time.perf_counter(), 0.0)

ENVIRONMENT = "CartPole-v1"
STEPS = 128
EPOCHS = 4
LEARNING_RATE = 2.5e-4  # falls to 0 in a straight line
ADAM_EPS = 1e-5
GAMMA, LAMBDA = 0.99, 0.95
CLIP = 0.2  # of the ratio and of values
ENTROPY, CRITIC = 0.01, 0.5
MAX_NORM = 0.5
WIDTHS = [64, 64]  # of the policy and of the critic, with tanh
PACKAGES = ("plugrl", "stable-baselines3", "torchrl", "tensordict", "torch", "gymnasium", "numpy")


@dataclass(frozen=True)
class Settings:
    """How many environments are stepped, and what one optimizer step learns from."""

    environments: int
    minibatch: int

    @property
    def batch(self) -> int:
        """The steps of an iteration."""
        return self.environments * STEPS


SETTINGS = {"small": Settings(4, 128), "wide": Settings(64, 2048)}


@dataclass(frozen=True)
class Given:
    """What a side is asked to do."""

    folder: Path
    settings: Settings
    iterations: int
    seed: int
    implementation: str | None = None

    @property
    def steps(self) -> int:
        """All steps of the run."""
        return self.iterations * self.settings.batch


def arguments() -> Given:
    """The command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", choices=SETTINGS)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--implementation", help="read by plugrl's side")
    given = parser.parse_args()
    settings = SETTINGS[given.settings]
    iterations = -(-given.steps // settings.batch)
    return Given(given.folder, settings, iterations, given.seed, given.implementation)


class Clock:
    """Times the phases of a side, which waits between its turns while the others have theirs.

    So all sides meet the same moments of a busy machine, and none runs beside another. The waits
    are not counted. Standard output is the line to the driver; what a library prints goes to
    standard error.
    """

    #: Steps of a turn. Who comes back from waiting finds caches cold and, on some machines, memory
    #: put away; turns of a tenth of a second measure much of that.
    TURN = 65536

    def __init__(self, given: Given) -> None:
        self._given = given
        self._iterations = 0
        #: Steps that belong to no phase called ``learn``.
        self.left_out = 0
        self._waited = 0.0
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._last = BEGAN
        self._seconds: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._say("ready")

    def end(self, phase: str) -> None:
        """``phase`` ends now; it began where the one before ended."""
        now = (time.perf_counter() - self._waited, time.process_time())
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now[0] - self._last[0]
        self._cpu[phase] = self._cpu.get(phase, 0.0) + now[1] - self._last[1]
        self._last = now

    def iteration(self) -> None:
        """An iteration ends; wait if the turn is over."""
        self._iterations += 1
        if self._iterations % max(1, self.TURN // self._given.settings.batch) == 0:
            self._say("turn")

    def report(self, mean_return: float) -> None:
        """Send the seconds of each phase as one line of JSON.

        Raises:
            SystemExit: the side made another number of iterations, so the work was another one.
        """
        if self._iterations != self._given.iterations:
            raise SystemExit(f"{self._iterations} iterations, not {self._given.iterations}")
        facts = {
            "steps": self._given.steps - self.left_out,
            "seconds": self._seconds,
            "cpu_seconds": self._cpu,
            "return": mean_return,
            "versions": {name: _version(name) for name in PACKAGES},
        }
        self._say(json.dumps(facts), wait=False)

    def _say(self, line: str, wait: bool = True) -> None:
        began = time.perf_counter()
        print(line, file=self._out, flush=True)
        if wait:
            sys.stdin.readline()
        self._waited += time.perf_counter() - began


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
