from __future__ import annotations

import torch
from torch.nn import functional

from plugrl.core.tensordict.discrete import Categorical


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
