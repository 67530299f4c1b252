"""What both sides do alike: tasks and settings of learners from old steps.

It is imported by the environment of each side, so it needs the standard library only. The settings
are those of RL Baselines3 Zoo for these environments, with networks of one size.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import _clock

WIDTHS = [256, 256]  # of policies and critics, with ReLU
GAMMA, TAU = 0.99, 0.005
ITERATION = 500  # steps


@dataclass(frozen=True)
class Settings:
    """A task, and what its learner is configured with."""

    environment: str
    batch: int
    learning_rate: float
    buffer: int
    train_freq: int = 1
    updates: int = 1  # each time
    learning_starts: int = 100


SETTINGS = {
    "dqn": Settings("Acrobot-v1", 128, 6.3e-4, 50_000, train_freq=4, updates=4),
    "td3": Settings("Pendulum-v1", 256, 1e-3, 200_000),
    "sac": Settings("Pendulum-v1", 256, 1e-3, 200_000),
}
#: Of DQN: steps between moves of the target network, and exploration.
TARGET_INTERVAL, FINAL_EPS, FRACTION = 250, 0.1, 0.12
NOISE = 0.1  # of TD3


@dataclass(frozen=True)
class Given:
    """What a side is asked to do."""

    folder: Path
    algorithm: str
    iterations: int
    seed: int
    compiled: bool = False

    @property
    def settings(self) -> Settings:
        """Those of the algorithm."""
        return SETTINGS[self.algorithm]

    @property
    def steps(self) -> int:
        """All steps of the run."""
        return self.iterations * ITERATION


def arguments() -> Given:
    """The command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("algorithm", choices=SETTINGS)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--compile", action="store_true", help="plugrl's side, compiled")
    given = parser.parse_args()
    # The first iteration counts for no ratio.
    iterations = 1 + -(-given.steps // ITERATION)
    return Given(given.folder, given.algorithm, iterations, given.seed, given.compile)


class Clock(_clock.Clock):
    """The clock of a side, whose first iteration is a phase of its own.

    In it many steps are at random and bring no update, and what is compiled is.
    """

    def __init__(self, given: Given) -> None:
        super().__init__(given.iterations, given.steps, 1)

    def iteration(self) -> None:
        """An iteration ends."""
        if self.left_out == 0:
            self.end("begin")
            self.left_out = ITERATION
        super().iteration()
