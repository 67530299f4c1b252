"""Distributions over actions, against torch's own, TorchRL's and numbers worked by hand."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference
from torchrl.modules import TanhNormal

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.distributions.choice import distribution_for
from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 3.0], np.float32)
MOST = float(np.finfo(np.float32).max)
BOX = spaces.Box(LOW, HIGH)


def _params(distribution: ActionDistribution, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*leading, distribution.parameters, generator=generator)


def _of_torch(space: spaces.Space[Any], params: torch.Tensor, squash: bool) -> Any:
    """The same distribution, built of torch's; its actions have one trailing dimension."""
    if isinstance(space, spaces.Discrete):
        return reference.Categorical(logits=params)
    if isinstance(space, spaces.MultiBinary):
        return reference.Independent(reference.Bernoulli(logits=params), 1)
    mean, log_std = params.chunk(2, -1)
    normal = reference.Normal(mean, log_std.exp())
    if not squash:
        return reference.Independent(normal, 1)
    middle, scale = torch.from_numpy((LOW + HIGH) / 2), torch.from_numpy((HIGH - LOW) / 2)
    bend = [
        reference.TanhTransform(),
        reference.AffineTransform(middle, scale, event_dim=0),
    ]
    return reference.Independent(reference.TransformedDistribution(normal, bend), 1)


CASES = [
    pytest.param(spaces.Discrete(2), False, id="two choices"),
    pytest.param(spaces.Discrete(5), False, id="five choices"),
    pytest.param(spaces.MultiBinary(3), False, id="bits"),
    pytest.param(BOX, False, id="normal"),
    pytest.param(BOX, True, id="squashed"),
]


@pytest.mark.parametrize(("space", "squash"), CASES)
def test_log_probabilities_and_entropies_are_those_of_torch(
    space: spaces.Space[Any], squash: bool
) -> None:
    ours = distribution_for(space, squash=squash)
    # Near the bounds float32 has too few digits to compare by.
    params = (_params(ours, 4, 7) * (0.3 if squash else 1)).requires_grad_()
    theirs = _of_torch(space, params, squash)
    action = theirs.sample().detach()
    log_prob = ours.log_prob(params, action)
    expected = theirs.log_prob(action.to(torch.float32))
    torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(log_prob.sum(), params, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), params)
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-3)
    if not squash:
        torch.testing.assert_close(ours.entropy(params), theirs.entropy())
        both = ours.log_prob_and_entropy(params, action)
        torch.testing.assert_close(both, (log_prob, theirs.entropy()))


def test_numbers_worked_by_hand() -> None:
    # Odds of 1 : 2 : 3, so that the probabilities are sixths.
    choice = distribution_for(spaces.Discrete(3))
    params = torch.log(torch.tensor([1.0, 2.0, 3.0]))
    assert choice.log_prob(params, torch.tensor(2)).item() == pytest.approx(math.log(3 / 6))
    expected = -sum(p * math.log(p) for p in (1 / 6, 2 / 6, 3 / 6))
    assert choice.entropy(params).item() == pytest.approx(expected)
    assert choice.mode(params).item() == 2
    # A standard normal at one deviation from its mean.
    normal = distribution_for(spaces.Box(-np.inf, np.inf, (1,)))
    params = torch.tensor([3.0, math.log(2.0)])
    log_prob = normal.log_prob(params, torch.tensor([5.0])).item()
    assert log_prob == pytest.approx(-0.5 - math.log(2 * math.sqrt(2 * math.pi)))
    assert normal.entropy(params).item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 4))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([3, 2, 4]),
        spaces.MultiBinary(3),
    ],
)
def test_the_best_action_is_the_likeliest_one(space: spaces.Space[Any]) -> None:
    """In torch and in NumPy, of all that there are."""
    ours = distribution_for(space)
    params = _params(ours, 16)
    if isinstance(space, spaces.Discrete):
        ranges = [range(int(space.start), int(space.start + space.n))]
    elif isinstance(space, spaces.MultiDiscrete):
        ranges = [range(int(n)) for n in space.nvec]
    else:
        ranges = [range(2)] * ours.parameters
    actions = torch.tensor(list(itertools.product(*ranges))).reshape(-1, *ours.action_shape)
    rows = [ours.log_prob(params, each.expand(16, *ours.action_shape)) for each in actions]
    likeliest = actions[torch.stack(rows).argmax(0)]
    assert ours.mode(params).tolist() == likeliest.tolist()
    assert ours.mode_numpy(params.numpy()).tolist() == likeliest.tolist()
    assert len({str(each) for each in likeliest.tolist()}) > 1


def test_several_choices_add_up() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 5], [0, 0]]))
    ours = distribution_for(space)
    assert ours.parameters == 11
    assert ours.action_shape == (2, 2)
    params = _params(ours, 6)
    action = ours.sample(params, torch.Generator().manual_seed(1))
    parts = [reference.Categorical(logits=each) for each in params.split([2, 3, 4, 2], -1)]
    numbered = (action - torch.tensor([[0, 5], [0, 0]])).reshape(6, 4)
    expected = sum(part.log_prob(numbered[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(ours.log_prob(params, action), expected)
    torch.testing.assert_close(ours.entropy(params), sum(part.entropy() for part in parts))
    assert all(each in space for each in action.numpy())
    modes = torch.stack([part.logits.argmax(-1) for part in parts], -1).reshape(6, 2, 2)
    assert torch.equal(ours.mode(params) - torch.tensor([[0, 5], [0, 0]]), modes)


def test_squashed_densities_are_those_of_torchrl_and_fill_the_bounds() -> None:
    space = spaces.Box(np.float32(-1), np.float32(3), (1,))
    ours = distribution_for(space, squash=True)
    params = torch.tensor([0.4, -0.5])
    grid = torch.linspace(-1, 3, 20_001)[1:-1, None]
    density = ours.log_prob(params.expand(len(grid), 2), grid)
    assert torch.trapezoid(density.exp(), grid[:, 0]).item() == pytest.approx(1, abs=1e-3)
    theirs = TanhNormal(params[:1], params[1:].exp(), low=-1.0, high=3.0, upscale=1.0)
    inner = grid[100:-100]
    expected = theirs.log_prob(inner)
    torch.testing.assert_close(density[100:-100], expected, rtol=1e-3, atol=2e-3)
    assert ours.log_scale == pytest.approx(math.log(2))  # type: ignore[attr-defined]


MORE = [
    *CASES,
    pytest.param(spaces.Discrete(3, start=4), False, id="numbered from four"),
    pytest.param(spaces.MultiDiscrete([2, 3]), False, id="several choices"),
    pytest.param(spaces.Box(-1, 1, (2, 2)), True, id="squashed matrix"),
    pytest.param(spaces.Box(-np.inf, np.inf, ()), False, id="one number"),
]


@pytest.mark.parametrize(("space", "squash"), MORE)
def test_numpy_draws_what_torch_describes(space: spaces.Space[Any], squash: bool) -> None:
    ours = distribution_for(space, squash=squash)
    params = _params(ours, 50) * (0.5 if squash else 1)
    action, log_prob = ours.sample_numpy(params.numpy(), np.random.default_rng(0))
    assert action.shape == (50, *ours.action_shape)
    assert (action.dtype, log_prob.dtype) == (ours.action_dtype, np.dtype(np.float32))
    expected = ours.log_prob(params, torch.from_numpy(action)).numpy()
    tolerance = 2e-2 if squash else 1e-5
    np.testing.assert_allclose(log_prob, expected, rtol=tolerance, atol=tolerance)
    best = ours.mode_numpy(params.numpy())
    assert best.dtype == ours.action_dtype
    np.testing.assert_allclose(best, ours.mode(params).numpy(), rtol=1e-5, atol=1e-6)
    if squash or ours.action_dtype.kind == "i":
        assert all(each in space for each in [*action, *best, *ours.sample(params).numpy()])


@pytest.mark.parametrize(("space", "squash"), MORE)
def test_an_agent_without_preferences_covers_the_space(
    space: spaces.Space[Any], squash: bool
) -> None:
    ours = distribution_for(space, squash=squash)
    action, log_prob = ours.uniform_numpy(2000, np.random.default_rng(0))
    assert action.shape == (2000, *ours.action_shape)
    assert all(np.asarray(each) in space for each in action)
    flat = action.reshape(2000, -1)
    if ours.action_dtype.kind == "i":
        different = len(np.unique(flat, axis=0))
        np.testing.assert_allclose(log_prob, -math.log(different), rtol=1e-6)
    elif np.isfinite(space.low).all():  # type: ignore[attr-defined]
        volume = np.prod(space.high - space.low)  # type: ignore[attr-defined]
        np.testing.assert_allclose(log_prob, -math.log(volume), rtol=1e-6)
        middle = (space.high + space.low).reshape(-1) / 2  # type: ignore[attr-defined]
        np.testing.assert_allclose(flat.mean(0), middle, atol=0.15)


@pytest.mark.parametrize("count", [2, 4])
def test_frequencies_are_probabilities(count: int) -> None:
    ours = distribution_for(spaces.Discrete(count))
    logits = np.arange(count, dtype=np.float32) * 0.7
    rows = np.repeat(logits[None], 40_000, 0)
    action, _ = ours.sample_numpy(rows, np.random.default_rng(3))
    drawn = ours.sample(torch.from_numpy(rows), torch.Generator().manual_seed(3)).numpy()
    probability = np.exp(logits) / np.exp(logits).sum()
    for each in (action, drawn):
        frequency = np.bincount(each, minlength=count) / len(each)
        deviation = np.sqrt(probability * (1 - probability) / len(each))
        assert (np.abs(frequency - probability) < 4.5 * deviation).all()


def test_moments_of_normal_draws() -> None:
    ours = distribution_for(BOX)
    rows = np.tile(np.array([1.0, -1.0, 0.0, math.log(0.5)], np.float32), (40_000, 1))
    for action in (
        ours.sample_numpy(rows, np.random.default_rng(3))[0],
        ours.sample(torch.from_numpy(rows), torch.Generator().manual_seed(3)).numpy(),
    ):
        np.testing.assert_allclose(action.mean(0), [1, -1], atol=0.02)
        np.testing.assert_allclose(action.std(0), [1, 0.5], atol=0.02)


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Discrete(3), spaces.MultiBinary(2)])
def test_extreme_logits_stay_finite(space: spaces.Space[Any]) -> None:
    ours = distribution_for(space)
    sign = np.where(np.arange(ours.parameters) == 0, 1, -1)
    params = np.tile((sign * 1e4).astype(np.float32), (1000, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action, log_prob = ours.sample_numpy(params, np.random.default_rng(0))
    assert (action == (0 if ours.action_shape == () else [1, 0])).all()
    assert (log_prob == 0).all()
    assert ours.entropy(torch.from_numpy(params)).abs().max().item() == 0


def test_a_choice_that_is_excluded_is_never_drawn() -> None:
    ours = distribution_for(spaces.Discrete(3))
    params = torch.tensor([[-math.inf, 0.0, 0.0]]).repeat(2000, 1).requires_grad_()
    action, _ = ours.sample_numpy(params.detach().numpy(), np.random.default_rng(0))
    assert set(action.tolist()) == {1, 2}
    entropy = ours.entropy(params)
    np.testing.assert_allclose(entropy.detach().numpy(), math.log(2), rtol=1e-6)
    log_prob, both = ours.log_prob_and_entropy(params, torch.from_numpy(action))
    for number in (entropy, log_prob + both):
        (gradient,) = torch.autograd.grad(number.sum(), params)
        assert gradient.isfinite().all()
        assert not gradient[:, 0].any()


def test_certain_actions_are_drawn_as_the_best_ones() -> None:
    space = spaces.Box(-2.0, 2.0, (3,), np.float32)
    certain = distribution_for(space, squash="deterministic")
    params = torch.tensor([[0.0, 1.0, -20.0]], requires_grad=True)
    action, log_prob = certain.rsample(params)
    # Twice the tanh of the parameters.
    expected = [0.0, 2 * math.tanh(1.0), -2.0]
    assert action[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert log_prob.tolist() == [0.0]
    (slope,) = torch.autograd.grad(action.sum(), params)
    assert slope[0, 0].item() == pytest.approx(2.0, rel=1e-4)


def test_squashed_samples_can_be_differentiated_and_know_their_density() -> None:
    ours = distribution_for(BOX, squash=True)
    params = _params(ours, 9).double().requires_grad_()
    action, log_prob = ours.rsample(params, torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_prob, ours.log_prob(params, action), rtol=1e-4, atol=1e-4)

    def drawn(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ours.rsample(given, torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(drawn, (params,), atol=1e-4)
    far = torch.full((3, ours.parameters), 30.0)
    for number in (*ours.rsample(far), ours.log_prob(far, torch.from_numpy(HIGH).expand(3, 2))):
        assert number.isfinite().all()


def test_even_draws_from_the_widest_bounds_are_finite() -> None:
    ours = distribution_for(spaces.Box(-MOST, MOST, (1,)))
    action, log_prob = ours.uniform_numpy(1000, np.random.default_rng(0))
    assert np.isfinite(action).all()
    assert (np.abs(action) > MOST / 2).mean() == pytest.approx(0.5, abs=0.05)
    # The logarithm of 1 / (2 * 3.4028e38).
    assert log_prob[0] == pytest.approx(-89.4159, abs=1e-3)


def test_actions_are_clipped_to_finite_bounds_alone() -> None:
    normal = distribution_for(spaces.Box(np.array([-np.inf, 0], np.float32), np.inf))
    np.testing.assert_array_equal(normal.clip(np.array([[-9.0, -9.0]])), [[-9, 0]])
    choice = distribution_for(spaces.Discrete(2))
    np.testing.assert_array_equal(choice.clip(np.array([1])), [1])


@pytest.mark.parametrize(
    ("space", "squash", "remedy"),
    [
        (spaces.Text(3), False, "wrap the environment"),
        (spaces.Box(0, 1, (2, 0)), False, "consist of nothing; mend the action space"),
        (spaces.MultiDiscrete(np.zeros((0,), np.int64)), False, "consist of nothing; mend"),
        (spaces.Dict({"a": spaces.Discrete(2)}), False, "MultiDiscrete"),
        (spaces.Box(0, 9, (2,), np.int64), False, "a Box of real numbers"),
        (spaces.Box(-np.inf, np.inf, (2,)), True, "within bounds, by a gymnasium.ActionWrapper"),
        (spaces.Box(-MOST, MOST, (2,)), True, "from -1 to 1 (scenario.actions=rescale does it)"),
        (spaces.Box(np.float32(0), np.float32(1e-35), ()), True, "closer than 1e-30"),
        (spaces.Box(np.float32([0, 1]), np.float32([1, 1])), True, "equal or the wrong way round"),
    ],
)
def test_spaces_without_a_distribution_are_named(
    space: spaces.Space[Any], squash: bool, remedy: str
) -> None:
    with pytest.raises(ConfigError) as error:
        distribution_for(space, squash=squash)
    assert "\n" not in str(error.value)
    assert str(space).partition("(")[0] in str(error.value)
    assert remedy in str(error.value)
