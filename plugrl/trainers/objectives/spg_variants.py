"""Which gradient each player follows, by the variants of ``spg``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from plugrl.trainers.objectives import spg_inverse
from plugrl.trainers.objectives.spg_gradients import (
    Answer,
    Game,
    Levels,
    SosWeights,
    best_responses,
    crossed_gradient,
    stable_shaping,
    steps,
    total_gradient,
)
from plugrl.trainers.objectives.spg_inverse import SYMMETRIC, IhvpVariant

Variant = Literal["spg", "pspg", "lola", "pola", "sos", "psos"]
#: Those whose ratios are clipped.
PROXIMAL: tuple[Variant, ...] = ("pspg", "pola", "psos")
#: Those in which followers move to their best response.
STACKELBERG: tuple[Variant, ...] = ("spg", "pspg")


@dataclass(frozen=True)
class Inverse:
    """How products with the inverse of a Hessian are found."""

    variant: IhvpVariant = "nystrom"
    iterations: int = 5
    rank: int = 5
    rho: float = 0.1

    def solver(
        self, generator: torch.Generator
    ) -> Callable[[spg_inverse.Product, torch.Tensor], torch.Tensor]:
        """The function that finds them."""
        rho = self.rho
        if self.variant == "exact":
            return functools.partial(spg_inverse.exact, rho=rho)
        if self.variant == "nystrom":
            return functools.partial(
                spg_inverse.nystrom, rho=rho, rank=self.rank, generator=generator
            )
        iterate = (
            spg_inverse.neumann if self.variant == "neumann" else spg_inverse.conjugate_gradient
        )
        return functools.partial(iterate, rho=rho, iterations=self.iterations)


_SOS, _INVERSE = SosWeights(), Inverse()


@dataclass(frozen=True)
class Shaping:
    """The gradients that players follow.

    Attributes:
        variant: how others are thought to respond.
        rates: the length of the gradient step that each player is thought to take.
        additional_lola_term: whether the change of the own gradient by these steps counts.
        sos: the numbers of stable opponent shaping.
        inverse: how best responses are found.
    """

    variant: Variant
    rates: Mapping[str, float]
    additional_lola_term: bool = True
    sos: SosWeights = _SOS
    inverse: Inverse = _INVERSE

    def gradients(
        self, game: Game, groups: Levels, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """A gradient ``[P]`` for each player, and metrics.

        Args:
            game: the losses of the players in all groups.
            groups: the players, those that lead at the front.
            generator: of what is drawn.
        """
        answer = self._answer(generator)
        responding = {name: self.responding(groups, name) for group in groups for name in group}
        simple = {name: game.gradient(name, name).detach() for name in responding}
        shaped = {
            name: total_gradient(game, name, levels, answer) if levels else simple[name]
            for name, levels in responding.items()
        }
        found, metrics = shaped, {}
        if self.variant not in STACKELBERG and (self.additional_lola_term or self._is_stable):
            crossed = {
                name: crossed_gradient(game, name, levels, self.rates)
                for name, levels in responding.items()
            }
            found = {name: shaped[name] - crossed[name] for name in shaped}
            if self._is_stable:
                shaping = {name: simple[name] - shaped[name] for name in simple}
                found, part = stable_shaping(simple, crossed, shaping, self.sos)
                metrics["shaping_part"] = part
        return found, metrics

    @property
    def _is_stable(self) -> bool:
        return self.variant in ("sos", "psos")

    def _answer(self, generator: torch.Generator) -> Answer:
        if self.variant in STACKELBERG:
            joint = self.inverse.variant not in SYMMETRIC
            return best_responses(self.inverse.solver(generator), joint)
        return steps(self.rates)

    def responding(self, groups: Levels, leader: str) -> list[Sequence[str]]:
        """The levels that respond to a player: later groups, and without best responses peers."""
        place = next(i for i, group in enumerate(groups) if leader in group)
        peers = [name for name in groups[place] if name != leader]
        levels: list[Sequence[str]] = [*groups[place + 1 :]]
        if peers and self.variant not in STACKELBERG:
            levels.insert(0, peers)
        return levels
