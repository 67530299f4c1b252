"""Gradients of players who know that others learn from what they do.

Each player i has a loss L_i of the parameters of all. Those who respond to a leader stand on
levels: a level responds to the leader and to the levels before it. With r_f the response of a
follower f to a change of its loss by its parameters, the derivatives by way of the followers are
added up backwards, as in reverse differentiation::

    a_h = grad_h L_g                         for the leader g and all h that respond to it
    for each level, the last one first:      a_h -= grad_h sum_f <grad_f L_f, r_f(a_f)>
                                             for g and all h on earlier levels

after which a_g is the leader's gradient. For a follower that moves to where its gradient is 0, r_f
is (Hess_f L_f)^-1 a_f (a Stackelberg game, ``spg``); for one that takes a gradient step of length
alpha, alpha a_f (LOLA). With one level the first is the implicit function theorem, and the second
the derivative of L_g after the step with the step's own change.

Sources: Foerster et al., arXiv 1709.04326 (LOLA); Letcher et al., arXiv 1811.08469 (SOS).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from plugrl.trainers.opponent_shaping import inverse_hessian
from plugrl.trainers.opponent_shaping.inverse_hessian import SYMMETRIC, IhvpVariant, Product

#: Names of players, level by level.
Levels = Sequence[Sequence[str]]
#: Gives the responses r_f of a level for the a_f of its members.
Response = Callable[["Game", Sequence[str], Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


class Game:
    """Losses and parameters of players, and gradients of them that can be differentiated again.

    Args:
        losses: a scalar for each player.
        parameters: what each player may change; none of them belongs to two.
    """

    def __init__(
        self,
        losses: Mapping[str, torch.Tensor],
        parameters: Mapping[str, Sequence[torch.Tensor]],
    ) -> None:
        self.losses = dict(losses)
        self.parameters = {name: list(each) for name, each in parameters.items()}
        self._gradients: dict[tuple[str, str], torch.Tensor] = {}

    def gradient(self, of: str, by: str) -> torch.Tensor:
        """The gradient ``[P]`` of a player's loss by the parameters of a player."""
        if (of, by) not in self._gradients:
            self._gradients[of, by] = self._flat(self.losses[of], [by], graph=True)[by]
        return self._gradients[of, by]

    def product(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], by: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        """Second derivatives times vectors: the gradients ``[P]`` of ``sum <gradient, vector>``.

        Vectors count as constants.
        """
        total = torch.stack([each.dot(vector.detach()) for each, vector in pairs]).sum()
        return self._flat(total, by, graph=False)

    def _flat(
        self, scalar: torch.Tensor, by: Sequence[str], graph: bool
    ) -> dict[str, torch.Tensor]:
        owners = [(name, p) for name in by for p in self.parameters[name]]
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in by}
        if scalar.requires_grad and owners:
            gradients = torch.autograd.grad(
                scalar,
                [p for _, p in owners],
                create_graph=graph,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        else:
            gradients = tuple(torch.zeros_like(p) for _, p in owners)
        for (name, _), gradient in zip(owners, gradients, strict=True):
            parts[name].append(gradient.reshape(-1))
        return {name: torch.cat(each) for name, each in parts.items() if each}


def total_gradient(game: Game, leader: str, levels: Levels, response: Response) -> torch.Tensor:
    """The gradient ``[P]`` of the leader's loss, with what it changes by way of the others.

    Args:
        game: the losses.
        leader: whose gradient it is.
        levels: who responds to it.
        response: how.
    """
    followers = [name for level in levels for name in level]
    a = {name: game.gradient(leader, name).detach() for name in [leader, *followers]}
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        responses = response(game, level, {name: a[name] for name in level})
        earlier = [leader, *(name for before in levels[:depth] for name in before)]
        pairs = [(game.gradient(name, name), responses[name]) for name in level]
        for name, change in game.product(pairs, earlier).items():
            a[name] = a[name] - change
    return a[leader]


def crossed_gradient(
    game: Game, leader: str, levels: Levels, rates: Mapping[str, float]
) -> torch.Tensor:
    """What the steps of others do to a gradient.

    With alpha their rates: ``sum_f alpha_f (grad_f L_f . grad_f) grad_g L_g``.
    """
    followers = [name for level in levels for name in level]
    pairs = [
        (game.gradient(leader, name), rates[name] * game.gradient(name, name)) for name in followers
    ]
    if not pairs:
        return torch.zeros_like(game.gradient(leader, leader))
    return game.product(pairs, [leader])[leader]


# -- how followers respond -----------------------------------------------------------------------


def gradient_steps(rates: Mapping[str, float]) -> Response:
    """Followers take a gradient step of these lengths."""

    def response(
        game: Game, level: Sequence[str], a: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        return {name: rates[name] * a[name] for name in level}

    return response


def best_responses(solve: Callable[[Product, torch.Tensor], torch.Tensor], joint: bool) -> Response:
    """Followers move to where their gradients are 0.

    Args:
        solve: gives the product of an inverse with a vector.
        joint: whether the members of a level respond to one another too, by the derivatives of all
            their gradients, which are not symmetric; else each by its own Hessian, which is.
    """

    def response(
        game: Game, level: Sequence[str], a: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        responses: dict[str, torch.Tensor] = {}
        for block in [list(level)] if joint else [[name] for name in level]:
            sizes = [len(a[name]) for name in block]

            def hessian(
                vector: torch.Tensor, block: list[str] = block, sizes: list[int] = sizes
            ) -> torch.Tensor:
                pieces = zip(block, torch.split(vector, sizes), strict=True)
                pairs = [(game.gradient(name, name), piece) for name, piece in pieces]
                products = game.product(pairs, block)
                return torch.cat([products[name] for name in block])

            solution = solve(hessian, torch.cat([a[name] for name in block]))
            responses.update(zip(block, torch.split(solution, sizes), strict=True))
        return responses

    return response


# -- stable opponent shaping ---------------------------------------------------------------------


@dataclass(frozen=True)
class SosWeights:
    """a and b of stable opponent shaping: how steep shaping may be, and which gradient is small."""

    scaling: float = 0.5
    threshold: float = 0.1


def stable_shaping(
    simple: Mapping[str, torch.Tensor],
    crossed: Mapping[str, torch.Tensor],
    shaping: Mapping[str, torch.Tensor],
    weights: SosWeights,
) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients of stable opponent shaping, and the part p of the shaping that they keep.

    In one vector over all players, with the simultaneous gradient xi, that of look-ahead
    xi_0 = xi - crossed, and the shaping chi, they are xi_0 - p chi. p keeps the step within half a
    turn of xi_0, and falls to 0 where xi does, so that shaping cannot make up an equilibrium.

    Source: Letcher et al., arXiv 1811.08469, algorithm 1; chi has the rates alpha in it.
    """
    ahead = {name: simple[name] - crossed[name] for name in simple}
    xi = torch.cat(list(simple.values()))
    xi_0 = torch.cat(list(ahead.values()))
    chi = torch.cat([shaping[name] for name in simple])
    p = 1.0
    along = -float(chi.dot(xi_0))
    if along < 0:
        p = min(1.0, -weights.scaling * float(xi_0.dot(xi_0)) / along)
    norm = float(xi.norm())
    if norm < weights.threshold:
        p = min(p, norm**2)
    return {name: ahead[name] - p * shaping[name] for name in simple}, p


# -- the variants of spg -------------------------------------------------------------------------

Variant = Literal["spg", "pspg", "lola", "pola", "sos", "psos"]
#: Those whose ratios are clipped.
PROXIMAL: tuple[Variant, ...] = ("pspg", "pola", "psos")
#: Those in which followers move to their best response.
STACKELBERG: tuple[Variant, ...] = ("spg", "pspg")


@dataclass(frozen=True)
class InverseHessian:
    """How products with the inverse of a Hessian are found."""

    variant: IhvpVariant = "nystrom"
    iterations: int = 5
    rank: int = 5
    rho: float = 0.1

    def solver(self, generator: torch.Generator) -> Callable[[Product, torch.Tensor], torch.Tensor]:
        """The function that finds them."""
        rho, iterations = self.rho, self.iterations
        if self.variant == "exact":
            return functools.partial(inverse_hessian.exact, rho=rho)
        if self.variant == "nystrom":
            return functools.partial(
                inverse_hessian.nystrom, rho=rho, rank=self.rank, generator=generator
            )
        if self.variant == "neumann":
            return functools.partial(inverse_hessian.neumann, rho=rho, iterations=iterations)
        return functools.partial(inverse_hessian.conjugate_gradient, rho=rho, iterations=iterations)


_SOS, _INVERSE = SosWeights(), InverseHessian()


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
    inverse: InverseHessian = _INVERSE

    def gradients(
        self, game: Game, groups: Levels, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """A gradient ``[P]`` for each player, and metrics.

        Args:
            game: the losses of the players in all groups.
            groups: the players, those that lead at the front.
            generator: of what is drawn.
        """
        followers = {name: self.followers(groups, name) for group in groups for name in group}
        simple = {name: game.gradient(name, name).detach() for name in followers}

        if self.variant in STACKELBERG:
            joint = self.inverse.variant not in SYMMETRIC
            response = best_responses(self.inverse.solver(generator), joint)
        else:
            response = gradient_steps(self.rates)
        shaped = {
            name: total_gradient(game, name, levels, response) if levels else simple[name]
            for name, levels in followers.items()
        }
        is_stable = self.variant in ("sos", "psos")
        if self.variant in STACKELBERG or not (self.additional_lola_term or is_stable):
            return shaped, {}

        crossed = {
            name: crossed_gradient(game, name, levels, self.rates)
            for name, levels in followers.items()
        }
        if not is_stable:
            return {name: shaped[name] - crossed[name] for name in shaped}, {}
        chi = {name: simple[name] - shaped[name] for name in simple}
        gradients, part = stable_shaping(simple, crossed, chi, self.sos)
        return gradients, {"shaping_part": part}

    def followers(self, groups: Levels, leader: str) -> list[Sequence[str]]:
        """The levels that respond to a player: later groups, and without best responses peers."""
        place = next(i for i, group in enumerate(groups) if leader in group)
        peers = [name for name in groups[place] if name != leader]
        levels: list[Sequence[str]] = [*groups[place + 1 :]]
        if peers and self.variant not in STACKELBERG:
            levels.insert(0, peers)
        return levels
