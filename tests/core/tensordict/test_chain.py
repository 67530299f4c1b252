from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from plugrl.core.tensordict.chain import LinearChain
from plugrl.core.tensordict.parts import Flatten, Head, chain_of, through


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def chain(modules: nn.Sequential) -> LinearChain:
    links = chain_of(modules)
    assert links is not None
    return LinearChain(modules, links)


def wanted(modules: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return [tensor for tensor in (x, *modules.parameters()) if tensor.requires_grad]


@pytest.mark.parametrize("frozen", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("asks_for_input", [True, False])
def test_gradients_are_those_of_the_modules(frozen, asks_for_input):
    modules = network()
    for parameter in list(modules.parameters())[:frozen]:
        parameter.requires_grad_(False)
    x = torch.randn(5, 7, 4, dtype=torch.float64, requires_grad=asks_for_input)
    gradient = torch.randn(5, 7, 3, dtype=torch.float64)
    given = chain(modules)
    assert given.accepts(x)
    torch.testing.assert_close(given(x), modules(x), rtol=0, atol=1e-12)
    own = torch.autograd.grad(given(x), wanted(modules, x), gradient)
    expected = torch.autograd.grad(modules(x), wanted(modules, x), gradient)
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)


def test_second_derivatives_are_those_of_the_modules():
    modules = network()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)

    def second(f) -> tuple[torch.Tensor, ...]:
        first = torch.autograd.grad(f(x).square().sum(), wanted(modules, x), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), wanted(modules, x))

    torch.testing.assert_close(second(chain(modules)), second(modules), rtol=1e-10, atol=1e-10)


def test_nothing_is_kept_where_nothing_is_differentiated():
    modules = network()
    with torch.no_grad():
        given = chain(modules)(torch.ones(2, 4, dtype=torch.float64))
    assert given.grad_fn is None


def test_weights_are_those_of_the_time_of_the_call():
    modules = network()
    given = chain(modules)
    x = torch.ones(2, 4, dtype=torch.float64)
    other = {name: torch.zeros_like(p) for name, p in modules.named_parameters()}
    torch.func.functional_call(modules, other, (x,))
    modules[4].bias = nn.Parameter(torch.full((3,), 9.0, dtype=torch.float64))
    torch.testing.assert_close(given(x), modules(x))


@pytest.mark.parametrize("x", [torch.ones(4, dtype=torch.float64), torch.ones(2, 4)])
def test_a_single_row_or_another_type_is_not_accepted(x):
    assert not chain(network()).accepts(x)


def test_transforms_and_hooks_go_through_the_modules():
    modules = network()
    head = Head(8, 2, hidden=[], activation="tanh").double()
    body = modules[:4]
    x = torch.randn(5, 4, dtype=torch.float64)
    plain = head(body(x))
    mapped = torch.func.vmap(lambda row: through(body, head, row.unsqueeze(0)))(x)
    torch.testing.assert_close(mapped.squeeze(1), plain)
    seen = []
    body[0].register_forward_hook(lambda *given: seen.append(given))
    torch.testing.assert_close(through(body, head, x), plain)
    assert len(seen) == 1


def test_what_is_no_chain_goes_through_the_modules():
    head = Head(6, 2, hidden=[5], activation="tanh")
    x = torch.randn(3, 1, 6)
    # The last dimension fits the layer, and yet it is not all of the observation.
    body = nn.Sequential(Flatten(2), nn.Linear(6, 6), nn.Tanh())
    assert through(body, head, x).shape == (3, 2)
    smooth = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    torch.testing.assert_close(through(smooth, head, x), head(smooth(x)))
    normed = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), nn.Tanh())
    torch.testing.assert_close(through(normed, head, x), head(normed(x)))


def test_copies_of_a_head_use_their_own_weights():
    body, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), Head(6, 2, hidden=[], activation="tanh")
    x = torch.randn(3, 4)
    before = through(body, head, x)
    other_body, other_head = copy.deepcopy((body, head))
    other_head.layers[0].bias.data += 1
    torch.testing.assert_close(through(other_body, other_head, x), before + 1)
    torch.testing.assert_close(through(body, head, x), before)


def test_free_numbers_follow_those_of_the_layers():
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    head = Head(6, 4, free=2, hidden=[], activation="tanh")
    x = torch.randn(3, 4)
    given = through(body, head, x)
    torch.testing.assert_close(given, head(body(x)))
    assert given.shape == (3, 4)
