"""Gradients of players who know that others learn from what they do.

Each player i has a loss L_i of the parameters of all. Those who respond to a leader stand on
levels: a level answers the leader and the levels before it. With m_f the answer of a follower f to
a pull on its parameters, the derivatives by way of the followers are added up backwards::

    a_h = grad_h L_g                         for the leader g and all h that respond to it
    for each level, the last one first:      a_h -= grad_h sum_f <grad_f L_f, m_f(a_f)>
                                             for g and all h on earlier levels

after which a_g is the leader's gradient. For a follower that moves to where its gradient is 0, m_f
is (Hess_f L_f)^-1 a_f (a Stackelberg game); for one that takes a gradient step of length r, r a_f
(LOLA). With one level the first is the implicit function theorem, and the second the derivative of
L_g after the step with the step's own change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from plugrl.trainers.objectives.spg_inverse import Product

#: Names of players, level by level.
Levels = Sequence[Sequence[str]]
#: Gives the m_f of a level for the pulls a_f on its members.
Answer = Callable[["Game", Sequence[str], Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


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

    def pulled(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], by: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        """The gradients ``[P]`` of ``sum <gradient, vector>``, with constant vectors."""
        total = torch.stack([each.dot(vector.detach()) for each, vector in pairs]).sum()
        return self._flat(total, by, graph=False)

    def _flat(
        self, scalar: torch.Tensor, by: Sequence[str], graph: bool
    ) -> dict[str, torch.Tensor]:
        owners = [(name, p) for name in by for p in self.parameters[name]]
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in by}
        if scalar.requires_grad and owners:
            found = torch.autograd.grad(
                scalar,
                [p for _, p in owners],
                create_graph=graph,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        else:
            found = tuple(torch.zeros_like(p) for _, p in owners)
        for (name, _), gradient in zip(owners, found, strict=True):
            parts[name].append(gradient.reshape(-1))
        return {name: torch.cat(each) for name, each in parts.items() if each}


def total_gradient(game: Game, leader: str, levels: Levels, answer: Answer) -> torch.Tensor:
    """The gradient ``[P]`` of the leader's loss, with what it changes by way of the others.

    Args:
        game: the losses.
        leader: whose gradient it is.
        levels: who responds to it.
        answer: how.
    """
    present = [name for level in levels for name in level]
    pulls = {name: game.gradient(leader, name).detach() for name in [leader, *present]}
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        moves = answer(game, level, {name: pulls[name] for name in level})
        earlier = [leader, *(name for before in levels[:depth] for name in before)]
        pairs = [(game.gradient(name, name), moves[name]) for name in level]
        for name, change in game.pulled(pairs, earlier).items():
            pulls[name] = pulls[name] - change
    return pulls[leader]


def crossed_gradient(
    game: Game, leader: str, levels: Levels, rates: Mapping[str, float]
) -> torch.Tensor:
    """What the steps of others do to a gradient: ``sum_f r_f (grad_f L_f . grad_f) grad_g L_g``."""
    present = [name for level in levels for name in level]
    pairs = [
        (game.gradient(leader, name), rates[name] * game.gradient(name, name)) for name in present
    ]
    if not pairs:
        return torch.zeros_like(game.gradient(leader, leader))
    return game.pulled(pairs, [leader])[leader]


def steps(rates: Mapping[str, float]) -> Answer:
    """Followers take a gradient step of these lengths."""

    def answer(
        game: Game, level: Sequence[str], pulls: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        return {name: rates[name] * pulls[name] for name in level}

    return answer


@dataclass(frozen=True)
class SosWeights:
    """The two numbers of stable opponent shaping: how steep it may be, and what is near."""

    scaling: float = 0.5
    threshold: float = 0.1


def stable_shaping(
    simple: Mapping[str, torch.Tensor],
    crossed: Mapping[str, torch.Tensor],
    shaping: Mapping[str, torch.Tensor],
    weights: SosWeights,
) -> tuple[dict[str, torch.Tensor], float]:
    """Gradients of stable opponent shaping, and the part of the shaping that they keep.

    With the simple gradients x, those of look-ahead x0 = x - crossed, and shaping c, in one vector
    over all players: x0 - p c, where p keeps the step within half a turn of x0 and falls to 0
    where x does.

    Source: Letcher et al., arXiv 1811.08469, algorithm 1, with ``c`` that has the rates in it.
    """
    ahead = {name: simple[name] - crossed[name] for name in simple}
    xi = torch.cat(list(simple.values()))
    flat = torch.cat(list(ahead.values()))
    against = -float(torch.cat([shaping[name] for name in simple]).dot(flat))
    part = 1.0
    if against < 0:
        part = min(1.0, -weights.scaling * float(flat.dot(flat)) / against)
    norm = float(xi.norm())
    if norm < weights.threshold:
        part = min(part, norm**2)
    return {name: ahead[name] - part * shaping[name] for name in simple}, part


def best_responses(solve: Callable[[Product, torch.Tensor], torch.Tensor], joint: bool) -> Answer:
    """Followers move to where their gradients are 0.

    Args:
        solve: gives the product of an inverse with a vector.
        joint: whether the members of a level answer one another too, by the derivatives of all
            their gradients, which are not symmetric; else each by its own Hessian, which is.
    """

    def answer(
        game: Game, level: Sequence[str], pulls: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        moves: dict[str, torch.Tensor] = {}
        for block in [list(level)] if joint else [[name] for name in level]:
            sizes = [len(pulls[name]) for name in block]

            def product(
                vector: torch.Tensor, block: list[str] = block, sizes: list[int] = sizes
            ) -> torch.Tensor:
                pieces = zip(block, torch.split(vector, sizes), strict=True)
                pairs = [(game.gradient(name, name), piece) for name, piece in pieces]
                found = game.pulled(pairs, block)
                return torch.cat([found[name] for name in block])

            solved = solve(product, torch.cat([pulls[name] for name in block]))
            moves.update(zip(block, torch.split(solved, sizes), strict=True))
        return moves

    return answer
