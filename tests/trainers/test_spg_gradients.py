"""Gradients of players who respond to each other, against autograd and closed forms."""

import pytest
import torch

from plugrl.trainers.opponent_shaping import inverse_hessian
from plugrl.trainers.opponent_shaping.gradients import (
    Game,
    best_responses,
    crossed_gradient,
    gradient_steps,
    total_gradient,
)

SIZES = {"leader": 3, "left": 4, "right": 2}


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def quadratic(owner, seed):
    """A loss of all parameters in one vector that curves upwards in those of its owner."""
    count = sum(SIZES.values())
    matrix, linear = normal(count, count, seed=seed), normal(count, seed=seed + 1)
    matrix = (matrix + matrix.T) / 4
    place = list(SIZES).index(owner)
    start = sum(list(SIZES.values())[:place])
    own = torch.zeros(count, dtype=torch.float64)
    own[start : start + SIZES[owner]] = 6
    matrix = matrix + torch.diag(own)
    return lambda x: x @ matrix @ x / 2 + linear @ x


LOSSES = {name: quadratic(name, 10 * i) for i, name in enumerate(SIZES)}


def split(x):
    return dict(zip(SIZES, x.split(list(SIZES.values())), strict=True))


def resting(leader):
    """Where both followers' gradients are 0, as a function of the leader that autograd knows."""
    count = SIZES["left"] + SIZES["right"]

    def field(followers):
        x = torch.cat([leader, followers])
        found = [torch.autograd.grad(LOSSES[name](x), x, create_graph=True)[0] for name in SIZES]
        return torch.cat([split(found[1])["left"], split(found[2])["right"]])

    zero = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    # The field is linear: F(y) = F(0) + J y.
    jacobian = torch.autograd.functional.jacobian(field, zero.detach().requires_grad_())
    return torch.linalg.solve(jacobian, -field(zero))


def game_at(x):
    parts = {name: part.detach().clone().requires_grad_() for name, part in split(x).items()}
    whole = torch.cat(list(parts.values()))
    return Game({n: LOSSES[n](whole) for n in SIZES}, {n: [p] for n, p in parts.items()})


def solve(product, vector):
    return inverse_hessian.exact(product, vector, rho=0.0)


def test_the_leaders_derivative_with_two_followers_is_that_of_autograd():
    leader = normal(SIZES["leader"], seed=3).requires_grad_()
    x = torch.cat([leader, resting(leader)])
    (expected,) = torch.autograd.grad(LOSSES["leader"](x), leader)
    game = game_at(x)
    answer = best_responses(solve, joint=True)
    found = total_gradient(game, "leader", [["left", "right"]], answer)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    alone = game.gradient("leader", "leader").detach()
    assert (found - alone).norm() > 0.1


def test_one_follower_answers_alike_in_both_ways():
    leader = normal(SIZES["leader"], seed=3).requires_grad_()
    x = torch.cat([leader.detach(), resting(leader).detach()])
    game = game_at(x)
    found = [
        total_gradient(game, "leader", [["left"]], best_responses(solve, joint=joint)).tolist()
        for joint in (True, False)
    ]
    assert found[0] == pytest.approx(found[1])


def test_a_chain_of_levels_is_that_of_autograd():
    # left answers the leader alone, right answers both: the losses are made so.
    def of_left(leader, left):
        return (left - leader.sum() ** 2 / 2).square().sum() + left[0] * leader[1]

    def of_right(leader, left, right):
        return (right - left[:2] * leader[0]).square().sum() + right.sum() * left.sum()

    def of_leader(leader, left, right):
        return (leader * right.sum()).sum() + left.square().sum() * leader[2]

    leader = normal(3, seed=5).requires_grad_()
    left = leader.sum() ** 2 / 2 - torch.stack([leader[1] / 2, *[leader[1] * 0] * 3])
    right = left[:2] * leader[0] - left.sum() / 2
    (expected,) = torch.autograd.grad(of_leader(leader, left, right), leader)
    parts = [part.detach().requires_grad_() for part in (leader, left, right)]
    losses = {
        "leader": of_leader(*parts),
        "left": of_left(*parts[:2]),
        "right": of_right(*parts),
    }
    game = Game(losses, {n: [p] for n, p in zip(SIZES, parts, strict=True)})
    answer = best_responses(solve, joint=False)
    found = total_gradient(game, "leader", [["left"], ["right"]], answer)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_leader_that_looks_ahead_is_that_of_autograd():
    rates = {"left": 0.3, "right": 0.1}
    parts = split(normal(9, seed=7))
    leader = parts["leader"].clone().requires_grad_()
    inner = torch.cat([leader, parts["left"], parts["right"]]).requires_grad_()
    # The first-order expansion of the loss after the followers' steps, as LOLA defines it.
    slopes = {n: torch.autograd.grad(LOSSES[n](inner), inner, create_graph=True)[0] for n in SIZES}
    ahead = LOSSES["leader"](inner) - sum(
        rates[n] * split(slopes["leader"])[n] @ split(slopes[n])[n] for n in rates
    )
    (expected,) = torch.autograd.grad(ahead, leader)
    game = game_at(torch.cat(list(parts.values())))
    levels = [["left", "right"]]
    found = total_gradient(game, "leader", levels, gradient_steps(rates)) - crossed_gradient(
        game, "leader", levels, rates
    )
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
