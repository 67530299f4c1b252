from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch.nn import functional

from plugrl.core.tensordict.discrete import Categorical
from plugrl.trainers.objectives import ppo_in_numpy
from plugrl.trainers.objectives.actor_critic import _ClippedSquares
from plugrl.trainers.objectives.ppo import PpoObjective
from tests.trainers.objective_agents import TableAgent


def test_gradients_of_a_choice_are_those_of_its_formulas():
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    action = torch.randint(4, (3, 5)) + 2
    of_log_prob, of_entropy = torch.randn(2, 3, 5, dtype=torch.float64)
    own = Categorical(4, start=2).log_prob_and_entropy(logits, action)
    logs = functional.log_softmax(logits, -1)
    picked = (logs * functional.one_hot(action - 2, 4)).sum(-1)
    expected = picked, -(logs.exp() * logs).sum(-1)
    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(
        torch.autograd.grad(own, logits, (of_log_prob, of_entropy)),
        torch.autograd.grad(expected, logits, (of_log_prob, of_entropy)),
        rtol=0,
        atol=1e-12,
    )


def test_a_choice_can_be_differentiated_twice():
    torch.manual_seed(1)
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    action = torch.randint(4, (3,))
    assert torch.autograd.gradgradcheck(
        lambda x: Categorical(4).log_prob_and_entropy(x, action), logits
    )


def test_an_impossible_choice_leaves_gradients_finite():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    log_prob, entropy = Categorical(3).log_prob_and_entropy(logits, torch.tensor([1]))
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 2] == 0


@pytest.mark.parametrize("clip", [0.05, 0.2, 1.0])
def test_gradients_of_clipped_values_are_those_of_their_formula(clip):
    torch.manual_seed(2)
    value = torch.randn(200, dtype=torch.float64, requires_grad=True)
    target = torch.randn(200, dtype=torch.float64)
    collected = value.detach() + 0.3 * torch.randn(200, dtype=torch.float64)
    own = _ClippedSquares.apply(value, target, collected, clip)
    near = torch.clamp(value, collected - clip, collected + clip)
    expected = torch.maximum((value - target).square(), (near - target).square()).mean()
    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(
        torch.autograd.grad(own * 3, value),
        torch.autograd.grad(expected * 3, value),
        rtol=0,
        atol=1e-12,
    )


def several_choices(dtype, masked):
    torch.manual_seed(4)
    logits = torch.randn(300, 5, dtype=dtype)
    if masked:
        logits[::3, 4] = -torch.inf
    action = torch.randint(4, (300,)) + 7
    rows = TensorDict(
        {
            "observation": torch.arange(300)[:, None],
            "action": action,
            "action_log_prob": (logits.log_softmax(-1).gather(-1, action[:, None] - 7))[:, 0]
            + 0.3 * torch.randn(300, dtype=dtype),
            "advantage": 3 * torch.randn(300, 1, dtype=dtype) + 1,
            "value_target": torch.randn(300, 1, dtype=dtype),
            "state_value": torch.randn(300, 1, dtype=dtype),
        },
        batch_size=[300],
    )
    return logits, torch.randn(300, dtype=dtype), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("clip_value", [None, 0.1])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("entropy_eps", [0.0, 0.05])
def test_losses_in_numpy_are_those_in_torch(
    monkeypatch, dtype, normalize, clip_value, masked, entropy_eps
):
    logits, value, rows = several_choices(dtype, masked)
    agent = TableAgent(logits.tolist(), value.tolist(), start=7).to(dtype)
    objective = PpoObjective(
        agent,
        critic_coef=0.7,
        entropy_eps=entropy_eps,
        normalize_advantage=normalize,
        clip_value=clip_value,
    )
    own = objective(rows)
    weights = torch.tensor([0.3, 1.7, -2.0], dtype=dtype)
    given = torch.autograd.grad(summed(own, weights), agent.parameters())
    monkeypatch.setattr(ppo_in_numpy, "suits", lambda *args: False)
    expected = objective(rows)
    assert own.keys() == expected.keys()
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0, "atol": 1e-12}
    for name, number in expected.items():
        torch.testing.assert_close(own[name], number, **close)
    wanted = torch.autograd.grad(summed(expected, weights), agent.parameters())
    torch.testing.assert_close(given, wanted, **close)


def summed(losses, weights):
    parts = [value for name, value in losses.items() if name.startswith("loss_")]
    return sum(weight * part for weight, part in zip(weights, parts, strict=False))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_ratio_at_the_bound_itself_learns_as_with_torchs_clamp(advantage):
    options = ppo_in_numpy.ClippedOptions(
        clip_epsilon=0.0, critic_coef=0.0, entropy_eps=0.0, normalize_advantage=False,
        clip_value=None,
    )  # fmt: skip
    rows = TensorDict(
        {
            "action": torch.zeros(1, dtype=torch.int64),
            "action_log_prob": torch.tensor([0.5]).log(),
            "advantage": torch.tensor([[advantage]]),
            "value_target": torch.zeros(1, 1),
        },
        batch_size=[1],
    )
    logits, other = (torch.zeros(1, 2, requires_grad=True) for _ in range(2))
    value = torch.zeros(1, requires_grad=True)
    distribution = Categorical(2)
    losses, metrics = ppo_in_numpy.clipped_losses(distribution, logits, value, rows, options)
    assert metrics["kl"] == 0
    losses["loss_objective"].backward()
    ratio = (other.log_softmax(1)[:, 0] - rows["action_log_prob"]).exp()
    (-torch.minimum(ratio * advantage, ratio.clamp(1.0, 1.0) * advantage)).backward()
    assert logits.grad.tolist() == other.grad.tolist() == [[-advantage / 2, advantage / 2]]


def test_losses_in_numpy_refuse_a_second_derivative():
    logits, value, rows = several_choices(torch.float32, False)
    agent = TableAgent(logits.tolist(), value.tolist(), start=7)
    losses = PpoObjective(agent)(rows)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(losses["loss_objective"], agent.logits, create_graph=True)


def test_clipped_values_refuse_a_second_derivative():
    value = torch.randn(5, requires_grad=True)
    loss = _ClippedSquares.apply(value, torch.zeros(5), torch.zeros(5), 0.2)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, value, create_graph=True)
