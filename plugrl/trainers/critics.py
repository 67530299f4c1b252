"""What algorithms with action values share: distances, target networks and twin critics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.nn import functional

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.distributions.continuous import SquashedNormal
from plugrl.core.tensordict.environment.vector_environment import space_text
from plugrl.core.tensordict.off_policy import OffPolicyTrainer, ReplayConfig

Distance = Literal["l2", "smooth_l1", "l1"]

#: The distance of values from their targets, by ``rl.loss_critic_type``.
DISTANCES = {
    "l2": functional.mse_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "l1": functional.l1_loss,
}


@torch.no_grad()
def polyak_update(
    targets: list[torch.Tensor], sources: list[torch.Tensor], tau: float = 1.0
) -> None:
    """``target <- (1 - tau) target + tau source`` for each pair; with ``tau`` 1 a copy."""
    if tau == 1:
        torch._foreach_copy_(targets, sources)
    else:
        torch._foreach_lerp_(targets, sources, tau)


class Critics(nn.Module):
    """Several networks ``Q_i`` that give an observation and a continuous action a value.

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
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = 1 / math.sqrt(fan_in)
            for tensors, shape in (
                (self.weights, (count, fan_in, fan_out)),
                (self.biases, (count, 1, fan_out)),
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
        # Not by the iterators of the lists, which take as long as a small product.
        weights, biases = self.weights._parameters.values(), self.biases._parameters.values()
        layers = list(zip(weights, biases, strict=True))
        if count is not None:
            layers = [(weight[:count], bias[:count]) for weight, bias in layers]
        if frozen:
            layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        *layers, (weight, bias) = layers
        hidden = hidden.expand(len(weight), *hidden.shape)
        for layer_weight, layer_bias in layers:
            hidden = torch.baddbmm(layer_bias, hidden, layer_weight).relu_()
        # A batched product with one column is several times slower than this.
        values: torch.Tensor = (hidden * weight.transpose(1, 2)).sum(-1) + bias.squeeze(-1)
        return values


@dataclass
class TwinCriticsConfig(ReplayConfig):
    """What learners from old steps have that ask two critics."""

    critic_hidden: list[int] = described(
        [256, 256], "widths of the layers of both critics", at_least=1
    )
    tau: float = described(
        0.005, "part of its way that a target network moves each time", above=0, at_most=1
    )


class TwinCriticsTrainer(OffPolicyTrainer):
    """Base class of ``sac`` and ``td3``; its section is a :class:`TwinCriticsConfig`."""

    #: A task with real numbers for actions.
    conformance: ClassVar[Mapping[str, Any]] = {
        **OffPolicyTrainer.conformance,
        "scenario": {"type": "gymnasium", "id": "Pendulum-v1", "num_envs": 2},
    }

    @classmethod
    def check_actions(cls, agent: Agent) -> None:
        """Refuse actions that are no real numbers."""
        if not isinstance(agent.distribution, SquashedNormal):
            remedy = (
                "dqn or vanilla_ppo" if isinstance(agent.spaces.action, Discrete) else "vanilla_ppo"
            )
            raise ConfigError(
                f"{cls.section} chooses real numbers, and the actions of agent "
                f"{agent.name} are {space_text(agent.spaces.action)}; take {remedy}"
            )

    def _new_critics(self) -> Critics:
        """Two critics for :attr:`agent`; its name and the seed decide their first weights."""
        return Critics(
            math.prod(self.agent.encoder.shape),
            cast(Box, self.agent.spaces.action),
            self.algorithm.critic_hidden,
            generator=self._generator("critics", "cpu"),
        )
