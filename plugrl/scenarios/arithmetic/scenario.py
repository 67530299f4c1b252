"""Addition of two numbers with a fixed number of digits, such as ``12+34=`` to ``046``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import DataItem, Scenario, ScenarioInstance


@dataclass
class ArithmeticConfig:
    """Sizes of the splits. ``validation`` and ``development`` do not depend on the seed."""

    digits: int = described(2, "digits of each number", at_least=1, at_most=4)
    validation: int = described(
        256, "held-out problems that measure the result", at_least=0, at_most=10**8
    )
    development: int = described(
        256, "held-out problems for decisions during training", at_least=0, at_most=10**8
    )
    demonstrations: int = described(
        1000, "problems with answers for supervised training", at_least=0, at_most=10**8
    )
    train: int | None = described(
        None, "problems for reinforcement learning; null: the rest", at_least=0, at_most=10**8
    )
    pairs: bool = described(
        False,
        "columns chosen and rejected: the right answer, and one with a digit that is off by 1",
    )


class ArithmeticScenario(Scenario):
    """Addition of two numbers: generates all problems, then splits them.

    A problem and its mirror (``a+b`` and ``b+a``) never stand on two sides of the line between
    held-out and training problems.
    """

    Config: ClassVar[type] = ArithmeticConfig

    def build(self, seed: int) -> ScenarioInstance:
        """Split the problems; the held-out splits are equal for every seed.

        Raises:
            ConfigError: the splits ask for more problems than there are.
        """
        low, high = 10 ** (self.config.digits - 1), 10**self.config.digits
        if self.config.digits == 1:
            low = 0
        pairs = [(a, b) for a in range(low, high) for b in range(a, high)]
        order = np.random.default_rng(self.config.digits).permutation(len(pairs))
        held_out = self.config.validation + self.config.development
        if held_out + self.config.demonstrations > len(pairs):
            raise ConfigError(
                f"scenario arithmetic: {held_out} held-out problems and "
                f"{self.config.demonstrations} demonstrations are more than the {len(pairs)} "
                f"pairs of {self.config.digits}-digit numbers"
            )
        kept = [pairs[i] for i in order]
        # Which of a pair and its mirror is held out is as arbitrary as the order.
        held = [(a, b) if i % 2 else (b, a) for i, (a, b) in enumerate(kept[:held_out])]
        rest = [(a, b) for pair in kept[held_out:] for a, b in sorted({pair, pair[::-1]})]
        training = [rest[i] for i in np.random.default_rng([seed, 1]).permutation(len(rest))]
        demonstrations = training[: self.config.demonstrations]
        train = training[self.config.demonstrations :][: self.config.train]
        return ScenarioInstance(
            name="arithmetic",
            datasets={
                "validation": self._items(held[: self.config.validation]),
                "development": self._items(held[self.config.validation :]),
                "demonstrations": self._items(demonstrations),
                "train": self._items(train),
            },
        )

    def _items(self, pairs: list[tuple[int, int]]) -> list[DataItem]:
        width = self.config.digits + 1
        items = []
        for a, b in pairs:
            item = {"prompt": f"{a}+{b}=", "answer": f"{a + b:0{width}d}"}
            if self.config.pairs:
                wrong = f"{wrong_sum(a, b, width):0{width}d}"
                item |= {"chosen": item["answer"], "rejected": wrong}
            items.append(item)
        return items


# Each phase of a sequence asks for the same problems, before the run and in it.
@functools.lru_cache(maxsize=1 << 15)
def wrong_sum(a: int, b: int, width: int) -> int:
    """A wrong sum that depends on the problem alone: one digit too much or too little somewhere."""
    off = [sign * 10**place for place in range(width) for sign in (-1, 1)]
    possible = [a + b + change for change in off if 0 <= a + b + change < 10**width]
    return possible[int(np.random.default_rng([a, b]).integers(len(possible)))]
