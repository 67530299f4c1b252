"""Claims such as ``47+38=085``, half of them wrong by one digit, with the working that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.scenario import DataItem, ScenarioInstance
from plugrl.scenarios.arithmetic.scenario import ArithmeticConfig, ArithmeticScenario, wrong_sum


@dataclass
class ArithmeticClaimsConfig(ArithmeticConfig):
    """Sizes of the splits, in pairs of numbers; each pair gives a right and a wrong claim."""

    validation: int = described(
        128, "held-out pairs that measure the result", at_least=0, at_most=10**8
    )
    development: int = described(
        128, "held-out pairs for decisions during training", at_least=0, at_most=10**8
    )

    def __post_init__(self) -> None:
        if self.pairs:
            raise ConfigError("pairs is of the scenario arithmetic alone; leave it out")


class ArithmeticClaimsScenario(ArithmeticScenario):
    """Claims about the sum of two numbers: a verifier is to find out which are right.

    Columns: ``prompt``, the claim; ``label``, 1 where it is right; ``sum``, the right sum;
    ``working``, the sums of the digits from the right, with what is carried; ``verdict``, Y or N.
    Pairs are split as in ``arithmetic``: no held-out claim is about a pair that is trained on.
    """

    Config: ClassVar[type] = ArithmeticClaimsConfig

    def build(self, seed: int) -> ScenarioInstance:
        """Split the pairs; the held-out splits are equal for every seed.

        Raises:
            ConfigError: the splits ask for more pairs than there are.
        """
        return ScenarioInstance(name="arithmetic_claims", datasets=super().build(seed).datasets)

    def _items(self, pairs: list[tuple[int, int]]) -> list[DataItem]:
        width = self.config.digits + 1
        claims = []
        for a, b in pairs:
            for label, claimed in ((1, a + b), (0, wrong_sum(a, b, width))):
                claims.append(
                    {
                        "prompt": f"{a}+{b}={claimed:0{width}d}",
                        "label": label,
                        "sum": f"{a + b:0{width}d}",
                        "working": _working(a, b),
                        "verdict": "NY"[label],
                    }
                )
        return claims


def _working(a: int, b: int) -> str:
    """The sums of the digits, from the right: ``7+8=15;1+4+3=8``."""
    steps, carried = [], 0
    for x, y in zip(str(a)[::-1], str(b)[::-1], strict=True):
        terms = [carried, int(x), int(y)] if carried else [int(x), int(y)]
        steps.append(f"{'+'.join(map(str, terms))}={sum(terms)}")
        carried = sum(terms) // 10
    return ";".join(steps)
