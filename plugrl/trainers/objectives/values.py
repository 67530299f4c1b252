"""What losses of action values share: critics, targets, and networks that follow others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from gymnasium.spaces import Box
    from tensordict import TensorDict

Distance = Literal["l2", "smooth_l1", "l1"]

DISTANCES = {
    "l2": functional.mse_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "l1": functional.l1_loss,
}


class Critics(nn.Module):
    """Several networks that give an observation and a continuous action a value.

    The weights of a layer of all networks are one tensor, so that a layer is one batched product.
    Each begins as ``nn.Linear`` does. Actions are scaled to the range from -1 to 1 first.

    Args:
        inputs: numbers of an encoded observation.
        actions: the bounded space of actions.
        hidden_sizes: of each network, with ReLU behind each layer.
        count: how many networks there are.
        generator: draws the first weights.
    """

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(
        self,
        inputs: int,
        actions: Box,
        hidden_sizes: Sequence[int] = (256, 256),
        *,
        count: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        low, high = (
            torch.as_tensor(bound).flatten().float() for bound in (actions.low, actions.high)
        )
        self.register_buffer("centre", (high + low) / 2, persistent=False)
        self.register_buffer("scale", 2 / (high - low), persistent=False)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        sizes = (inputs + len(low), *hidden_sizes, 1)
        for before, behind in itertools.pairwise(sizes):
            bound = 1 / math.sqrt(before)
            for tensors, shape in (
                (self.weights, (count, before, behind)),
                (self.biases, (count, 1, behind)),
            ):
                first = torch.empty(shape).uniform_(-bound, bound, generator=generator)
                tensors.append(nn.Parameter(first))

    def forward(
        self,
        observation: torch.Tensor,
        action: torch.Tensor,
        *,
        frozen: bool = False,
        count: int | None = None,
    ) -> torch.Tensor:
        """The values ``[count, B]`` of encoded observations ``[B, inputs]`` and actions.

        Args:
            observation: ``[B, ...]`` of ``inputs`` numbers.
            action: ``[B, *action]``, in the units of the environment.
            frozen: let gradients reach the action, but not the weights.
            count: ask only the first so many networks.
        """
        # Not flatten(1): an action may be a number without a dimension of its own.
        scaled = (action.reshape(len(action), -1) - self.centre) * self.scale
        hidden = torch.cat([observation.reshape(len(observation), -1), scaled], -1)
        layers = [(w[:count], b[:count]) for w, b in zip(self.weights, self.biases, strict=True)]
        if frozen:
            layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        *layers, (weight, bias) = layers
        hidden = hidden.expand(len(weight), *hidden.shape)
        for own_weight, own_bias in layers:
            hidden = torch.baddbmm(own_bias, hidden, own_weight).relu_()
        # A batched product with one column is several times slower than this.
        values: torch.Tensor = (hidden * weight.transpose(1, 2)).sum(-1) + bias.squeeze(-1)
        return values


def bootstrapped(td: TensorDict, value: torch.Tensor, gamma: float) -> torch.Tensor:
    """``reward + gamma value``, ``[B]``: a terminated step is worth its reward alone.

    A truncated episode could have gone on, so that its last observation keeps its value.
    """
    following = td["next"]
    going = following["terminated"].squeeze(-1).logical_not()
    target: torch.Tensor = following["reward"].squeeze(-1) + gamma * going * value
    return target


def value_loss(values: torch.Tensor, target: torch.Tensor, distance: Distance) -> torch.Tensor:
    """Mean distance of ``values [..., B]`` from ``target [B]``, added up over networks."""
    loss = DISTANCES[distance](values, target.expand_as(values), reduction="none")
    return loss.mean(-1).sum()


@torch.no_grad()
def follow(
    followers: Iterable[torch.Tensor], leaders: Iterable[torch.Tensor], tau: float = 1.0
) -> None:
    """Move each follower the part ``tau`` of its way to its leader; 1: onto it."""
    for follower, leader in zip(followers, leaders, strict=True):
        if tau == 1:
            follower.copy_(leader)
        else:
            follower.lerp_(leader, tau)
