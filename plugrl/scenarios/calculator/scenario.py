"""Products of two numbers, such as ``47*83=`` to ``3901``, for an agent with a calculator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance


@dataclass
class CalculatorConfig:
    """Sizes of the splits. ``validation`` and ``development`` do not depend on the seed."""

    digits: int = described(2, "digits of each number", at_least=2, at_most=3)
    validation: int = described(
        256, "held-out problems that measure the result", at_least=0, at_most=10**8
    )
    development: int = described(
        128, "held-out problems for decisions during training", at_least=0, at_most=10**8
    )
    demonstrations: int = described(
        500, "problems with the replies of an agent", at_least=0, at_most=10**8
    )
    train: int | None = described(
        None, "problems for reinforcement learning; null: the rest", at_least=0, at_most=10**8
    )


class CalculatorScenario(Scenario):
    """Generates all products, then splits them.

    The numbers begin where every product has twice as many digits, at 32 or 317: what is to be
    learned is the use of the tool, and results of one length are copied sooner. A problem's
    ``demonstration`` is what an agent says who calls the calculator in brackets and then gives
    its result: ``[47*83]`` and ``3901``.
    """

    Config: ClassVar[type] = CalculatorConfig

    def build(self, seed: int) -> ScenarioInstance:
        """Split the problems; the held-out splits are equal for every seed.

        Raises:
            ConfigError: the splits ask for more problems than there are.
        """
        low = math.isqrt(10 ** (2 * self.config.digits - 1)) + 1
        numbers = range(low, 10**self.config.digits)
        pairs = [(a, b) for a in numbers for b in numbers]
        order = np.random.default_rng(self.config.digits).permutation(len(pairs))
        held_out = self.config.validation + self.config.development
        asked = held_out + self.config.demonstrations
        if asked > len(pairs):
            raise ConfigError(
                f"scenario calculator: {asked} problems are asked for beside those of train, and "
                f"there are {len(pairs)} products of numbers from {low} up"
            )
        rest = [pairs[i] for i in order[held_out:]]
        training = [rest[i] for i in np.random.default_rng([seed, 1]).permutation(len(rest))]
        splits = {
            "validation": [pairs[i] for i in order[: self.config.validation]],
            "development": [pairs[i] for i in order[self.config.validation : held_out]],
            "demonstrations": training[: self.config.demonstrations],
            "train": training[self.config.demonstrations :][: self.config.train],
        }
        datasets = {name: [_item(*pair) for pair in own] for name, own in splits.items()}
        return ScenarioInstance(name="calculator", datasets=datasets)


def _item(a: int, b: int) -> DataItem:
    answer = str(a * b)
    return {"prompt": f"{a}*{b}=", "answer": answer, "demonstration": [f"[{a}*{b}]", answer]}
