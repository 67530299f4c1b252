"""How a side of a benchmark reports its times, and waits while the others have their turns.

It is imported by the environment of each side, so it needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version

#: The moment this process began, as far as Python can tell, in wall and in processor time.
BEGAN = (time.perf_counter(), 0.0)
PACKAGES = ("plugrl", "stable-baselines3", "torchrl", "tensordict", "torch", "gymnasium", "numpy")


class Clock:
    """Times the phases of a side, which waits between its turns while the others have theirs.

    So all sides meet the same moments of a busy machine, and none runs beside another. The waits
    are not counted. Standard output is the line to the driver; what a library prints goes to
    standard error.

    Args:
        iterations: that the side makes.
        steps: that these have in all.
        turn: iterations of a turn.
    """

    def __init__(self, iterations: int, steps: int, turn: int) -> None:
        self._wanted, self._steps, self._turn = iterations, steps, max(1, turn)
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
        if self._iterations % self._turn == 0:
            self._say("turn")

    def report(self, mean_return: float) -> None:
        """Send the seconds of each phase as one line of JSON.

        Raises:
            SystemExit: the side made another number of iterations, so the work was another one.
        """
        if self._iterations != self._wanted:
            raise SystemExit(f"{self._iterations} iterations, not {self._wanted}")
        facts = {
            "steps": self._steps - self.left_out,
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
