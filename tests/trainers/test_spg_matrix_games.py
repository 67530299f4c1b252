"""LOLA and SOS on games whose gradients are known, and inverses that are known."""

import pytest
import torch

from plugrl.core.errors import ConfigError
from plugrl.trainers.opponent_shaping import inverse_hessian
from plugrl.trainers.opponent_shaping.gradients import (
    Game,
    SosWeights,
    crossed_gradient,
    gradient_steps,
    stable_shaping,
    total_gradient,
)

PLAYERS = ("first", "second")
DEFAULTS = SosWeights()


def pieces(game, rate):
    """Simple gradients, crossed terms and shaping of both players, each of whom looks ahead."""
    rates = dict.fromkeys(PLAYERS, rate)
    simple = {name: game.gradient(name, name).detach() for name in PLAYERS}
    others = {"first": [["second"]], "second": [["first"]]}
    crossed = {n: crossed_gradient(game, n, others[n], rates) for n in PLAYERS}
    shaping = {
        n: simple[n] - total_gradient(game, n, others[n], gradient_steps(rates)) for n in PLAYERS
    }
    return simple, crossed, shaping


def lola(game, rate):
    simple, crossed, shaping = pieces(game, rate)
    return {n: simple[n] - crossed[n] - shaping[n] for n in PLAYERS}


def sos(game, rate, weights=DEFAULTS):
    return stable_shaping(*pieces(game, rate), weights)


def tandem(x, y):
    """Two riders who both push: (x + y)^2 - 2x and (x + y)^2 - 2y."""
    x = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([y], dtype=torch.float64, requires_grad=True)
    push = (x + y).square().sum()
    losses = {"first": push - 2 * x.sum(), "second": push - 2 * y.sum()}
    return Game(losses, {"first": [x], "second": [y]})


def test_lola_in_the_tandem_game():
    # With s = x + y: 2s - 2, less 0.1 times both 2 (2s - 2) and 2 (2s).
    s = 0.7 + 0.9
    found = lola(tandem(0.7, 0.9), 0.1)
    assert found["first"].item() == pytest.approx(2 * s - 2 - 0.1 * (8 * s - 4))
    assert found["second"].item() == pytest.approx(found["first"].item())


def test_lola_rests_where_it_should_not_and_sos_at_the_equilibrium():
    def rest(gradient):
        x = y = 0.2
        for _ in range(150):
            found = gradient(tandem(x, y))
            x -= 0.2 * found["first"].item()
            y -= 0.2 * found["second"].item()
        return x + y

    # Where 2s - 2 = 0.1 (8s - 4): arrogant riders, who both lose 2 s (s - 1).
    assert rest(lambda game: lola(game, 0.1)) == pytest.approx((1 - 0.2) / (1 - 0.4))
    assert rest(lambda game: sos(game, 0.1)[0]) == pytest.approx(1.0, abs=1e-2)


def test_sos_keeps_the_part_of_the_shaping_that_its_rule_says():
    # s = 1.02: x = 0.04 each, x0 = 0.04 (1 - 0.2), c = 0.1 * 2 * 2s, so that x0 - c turns round.
    s, rate = 1.02, 0.1
    ahead, shaping = 0.04 * 0.8, rate * 4 * s
    found, part = sos(tandem(0.51, 0.51), rate, SosWeights(0.5, 0.01))
    assert part == pytest.approx(0.5 * ahead / shaping)
    assert found["second"].item() == pytest.approx(ahead / 2)
    # Near the equilibrium the square of the gradient takes over.
    assert sos(tandem(0.51, 0.51), rate, SosWeights(0.5, 0.1))[1] == pytest.approx(2 * 0.04**2)
    # Where shaping helps, all of it stays.
    assert sos(tandem(-0.3, 0.1), rate)[1] == 1.0


def test_lola_in_matching_pennies_is_the_closed_form():
    # Probabilities p and q of heads; the losses are -(2p - 1)(2q - 1) and its negative.
    a, b, rate = 0.3, -0.8, 0.7
    x = torch.tensor([a], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([b], dtype=torch.float64, requires_grad=True)
    stake = ((2 * x.sigmoid() - 1) * (2 * y.sigmoid() - 1)).sum()
    found = lola(Game({"first": -stake, "second": stake}, {"first": [x], "second": [y]}), rate)
    p, q = torch.tensor([a, b], dtype=torch.float64).sigmoid().tolist()
    dp, dq = 2 * p * (1 - p), 2 * q * (1 - q)
    sp, sq = 2 * p - 1, 2 * q - 1
    # -dp sq, less 0.7 times (d12 L1) (d2 L2) + (d12 L2) (d2 L1) = 2 (-dp dq) (sp dq).
    assert found["first"].item() == pytest.approx(-dp * sq + rate * 2 * dp * dq * sp * dq)
    assert found["second"].item() == pytest.approx(dq * sp + rate * 2 * dp * dq * sq * dp)


def dilemma(first, second, discount=0.96):
    """The iterated prisoner's dilemma in closed form, for players who know the last round."""
    p = first.sigmoid()
    # The second player sees CD where the first sees DC.
    q = second.sigmoid()[[0, 1, 3, 2, 4]]
    joint = torch.stack([p * q, p * (1 - q), (1 - p) * q, (1 - p) * (1 - q)], -1)
    visits = torch.linalg.solve(torch.eye(4).double() - discount * joint[1:].T, joint[0])
    losses = torch.tensor([[1.0, 3, 0, 2], [1, 0, 3, 2]], dtype=torch.float64)
    return losses @ visits


def played(gradient, rounds=60):
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    for _ in range(rounds):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        losses = dilemma(x, y)
        found = gradient(
            Game(dict(zip(PLAYERS, losses, strict=True)), {"first": [x], "second": [y]})
        )
        x, y = x - found["first"], y - found["second"]
    # A round's loss: 1 where both cooperate, 2 where both defect.
    return dilemma(x, y).mean().item() * (1 - 0.96), x.sigmoid()


def test_who_shapes_the_other_cooperates_in_the_iterated_dilemma():
    simple, _ = played(lambda game: {n: game.gradient(n, n).detach() for n in PLAYERS})
    assert simple > 1.9
    for gradient in (lambda game: lola(game, 1.0), lambda game: sos(game, 1.0)[0]):
        loss, policy = played(gradient)
        assert loss < 1.2
        # After cooperation of the other more likely than after its defection: tit for tat.
        assert policy[1] > policy[2] + 0.5


# Inverses


def symmetric(count, seed=0, rank=None):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(count, rank or count, generator=generator, dtype=torch.float64)
    return root @ root.T / count


VECTOR = torch.tensor([1.0, -2, 0.5, 3, -1], dtype=torch.float64)


def inverse(matrix, rho):
    return torch.linalg.solve(matrix + rho * torch.eye(5).double(), VECTOR).tolist()


def test_inverses_are_exact_where_they_can_be():
    matrix, rho = symmetric(5), 0.1
    expected = inverse(matrix, rho)
    product = matrix.mv
    assert inverse_hessian.exact(product, VECTOR, rho).tolist() == pytest.approx(expected)
    assert inverse_hessian.nystrom(product, VECTOR, rho, 5).tolist() == pytest.approx(expected)
    assert inverse_hessian.nystrom(product, VECTOR, rho, 9).tolist() == pytest.approx(expected)
    found = inverse_hessian.conjugate_gradient(product, VECTOR, rho, 20)
    assert found.tolist() == pytest.approx(expected)
    found = inverse_hessian.neumann(product, VECTOR, rho, 3000)
    assert found.tolist() == pytest.approx(expected)


def test_nystrom_is_exact_for_a_matrix_of_its_rank():
    matrix = symmetric(5, rank=2)
    found = inverse_hessian.nystrom(matrix.mv, VECTOR, 0.1, 2, torch.Generator().manual_seed(3))
    assert found.tolist() == pytest.approx(inverse(matrix, 0.1))


def test_inverses_without_curvature_divide_by_rho():
    flat = torch.zeros_like
    for found in (
        inverse_hessian.nystrom(flat, VECTOR, 0.5, 3),
        inverse_hessian.conjugate_gradient(flat, VECTOR, 0.5, 3),
        inverse_hessian.neumann(flat, VECTOR, 0.5, 3),
        inverse_hessian.exact(flat, VECTOR, 0.5),
    ):
        assert found.tolist() == pytest.approx((VECTOR / 0.5).tolist())
    zero = torch.zeros_like(VECTOR)
    assert inverse_hessian.conjugate_gradient(flat, zero, 0.5, 3).abs().sum() == 0
    assert inverse_hessian.neumann(flat, zero, 0.5, 3).abs().sum() == 0


def test_nystrom_leaves_out_what_curves_down():
    matrix = torch.diag(torch.tensor([2.0, -0.11, 0.5, -3.0, 0.0], dtype=torch.float64))
    expected = VECTOR / torch.tensor([2.1, 0.1, 0.6, 0.1, 0.1], dtype=torch.float64)
    found = inverse_hessian.nystrom(matrix.mv, VECTOR, 0.1, 5)
    assert found.tolist() == pytest.approx(expected.tolist())


def test_conjugate_gradients_stop_where_the_matrix_curves_down():
    found = inverse_hessian.conjugate_gradient(lambda v: -v, VECTOR, 0.5, 5)
    assert found.abs().sum() == 0


def test_an_exact_inverse_of_a_network_is_refused():
    vector = torch.ones(inverse_hessian.LARGEST_EXACT + 1)
    with pytest.raises(ConfigError, match=r"spg\.ihvp_variant exact .* not 4097; take nystrom"):
        inverse_hessian.exact(lambda v: v, vector, 0.1)
