"""What all sides do alike: the settings of PPO, the turns they take, and how they report times.

It is imported by the environment of each side, so it needs the standard library only.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import _clock

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


class Clock(_clock.Clock):
    """The clock of a side."""

    #: Steps of a turn. Who comes back from waiting finds caches cold and, on some machines, memory
    #: put away; turns of a tenth of a second measure much of that.
    TURN = 65536

    def __init__(self, given: Given) -> None:
        super().__init__(given.iterations, given.steps, self.TURN // given.settings.batch)
