"""Heads, first weights, and bodies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import Head, chain_of, initialise, layers, seeded
from plugrl.scenarios.bodies.mlp import MlpBody
from plugrl.scenarios.bodies.nature_cnn import NatureCnnBody


def test_a_head_ends_with_weights_that_no_observation_changes() -> None:
    head = Head(4, 6, free=3, hidden=[5], activation="relu")
    assert head.free is not None
    with torch.no_grad():
        head.free.copy_(torch.tensor([1.0, 2.0, 3.0]))
    features = torch.randn(2, 7, 4)
    numbers = head(features)
    expected = head.layers[2](torch.relu(head.layers[0](features)))
    torch.testing.assert_close(numbers[..., :3], expected)
    assert torch.equal(numbers[..., 3:], torch.tensor([1.0, 2.0, 3.0]).expand(2, 7, 3))


def test_orthogonal_weights_have_their_gain() -> None:
    head = Head(8, 4, hidden=[8], activation="tanh")
    initialise(head, 2.0, 0.01)
    first, last = head.layers[0].weight, head.layers[2].weight
    torch.testing.assert_close(first @ first.T, 4 * torch.eye(8), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4), rtol=1e-4, atol=1e-7)
    assert not head.layers[0].bias.any()
    convolutions = NatureCnnBody({"features": 8}).build((1, 36, 36))[0]
    initialise(convolutions, 1.0)
    kernel = convolutions.layers[2].weight.flatten(1)
    torch.testing.assert_close(kernel @ kernel.T, torch.eye(64), rtol=1e-4, atol=1e-5)


def test_seeds_are_names_and_leave_the_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with seeded(1, "prover"):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(1, "prover"):
        assert torch.equal(torch.rand(3), first)
    with seeded(1, "verifier"):
        assert not torch.equal(torch.rand(3), first)


def test_chains_are_recognised() -> None:
    linear, other = nn.Linear(2, 3), nn.Linear(3, 1)
    links = chain_of(nn.Sequential(linear, nn.Tanh()), nn.Sequential(nn.Identity(), other))
    assert links is not None
    assert [(link.linear, link.activation) for link in links] == [(linear, "tanh"), (other, None)]
    assert chain_of(nn.Sequential(linear, nn.GELU())) is None
    assert chain_of(nn.Sequential(nn.ReLU(), linear)) is None
    assert chain_of(nn.Sequential(linear, nn.ReLU(), nn.Tanh())) is None
    assert chain_of(nn.Linear(2, 3, bias=False)) is None
    assert chain_of(NatureCnnBody().build((4, 84, 84))[0]) is None


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
def test_layers_have_their_activation(activation: str) -> None:
    network = nn.Sequential(*layers(3, [5], activation))
    x = torch.randn(4, 3)
    function = getattr(torch, activation, None) or getattr(nn.functional, activation)
    torch.testing.assert_close(network(x), function(network[0](x)))


@pytest.mark.parametrize("shape", [(6,), (2, 3), ()])
def test_mlp_takes_any_shape_and_leading_dimensions(shape: tuple[int, ...]) -> None:
    network, features = MlpBody({"hidden": [7, 5], "activation": "relu"}).build(shape)
    assert features == 5
    x = torch.randn(3, 4, *shape)
    inner = x.reshape(3, 4, -1)
    for layer in network:
        inner = layer(inner) if type(layer).__name__ != "Flatten" else inner
    assert torch.equal(network(x), inner)
    assert inner.shape == (3, 4, 5)


def test_an_empty_mlp_is_its_input() -> None:
    network, features = MlpBody({"hidden": []}).build((2, 3))
    x = torch.randn(4, 2, 3)
    assert features == 6
    assert torch.equal(network(x), x.reshape(4, 6))


@pytest.mark.parametrize("channels", ["auto", "first", "last"])
def test_nature_cnn_finds_the_channels(channels: str) -> None:
    images = torch.rand(2, 3, 4, 84, 84)
    first, features = NatureCnnBody({"features": 16}).build((4, 84, 84))
    assert features == 16
    expected = first(images)
    assert expected.shape == (2, 3, 16)
    if channels == "first":
        return
    last, _ = NatureCnnBody({"features": 16, "channels": channels}).build((84, 84, 4))
    last.load_state_dict(first.state_dict())
    torch.testing.assert_close(last(images.movedim(-3, -1)), expected)


def test_nature_cnn_has_the_size_of_the_paper() -> None:
    network, _ = NatureCnnBody().build((4, 84, 84))
    # 32 kernels of 8 x 8 x 4, 64 of 4 x 4 x 32, 64 of 3 x 3 x 64, and 512 x (64 x 7 x 7).
    weights = 32 * 256 + 32 + 64 * 512 + 64 + 64 * 576 + 64 + 512 * 3136 + 512
    assert sum(p.numel() for p in network.parameters()) == weights


@pytest.mark.parametrize("shape", [(4,), (84, 84), (4, 35, 84)])
def test_nature_cnn_says_what_it_reads(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"at least 36 x 36 .* take body: mlp"):
        NatureCnnBody().build(shape)


@pytest.mark.parametrize(
    ("cls", "section", "said"),
    [
        (MlpBody, {"hidden": [0]}, r"hidden\[0\]: must be at least 1"),
        (MlpBody, {"activation": "tnah"}, "must be one of tanh, relu"),
        (MlpBody, {"hiden": [3]}, "did you mean hidden"),
        (NatureCnnBody, {"features": 0}, "features: must be at least 1"),
    ],
)
def test_options_of_bodies_are_checked(cls: Any, section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cls(section)


def test_bodies_are_a_kind_of_component() -> None:
    registry = plugrl.Registry()
    names = {record.name for record in registry.records() if record.kind == "body"}
    assert {"mlp", "nature_cnn"} <= names

    @plugrl.register_body("twice-as-wide")
    class Wide(MlpBody):
        """A body of somebody else."""

    from plugrl.core.plugins.registry import default_registry

    found = default_registry()
    assert found.load(found.resolve("body", "twice-as-wide")) is Wide
