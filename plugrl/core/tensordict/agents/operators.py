"""Agents as TorchRL sees them: modules that read and write TensorDicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor

from plugrl.core.tensordict.agents.distributions.parameters import ParametersDistribution

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution
    from plugrl.core.tensordict.agents.masks import ActionMask
    from plugrl.core.tensordict.agents.observations import Encoder

OBSERVATION, PARAMS, ACTION = "observation", "params", "action"
LOG_PROB, VALUE = "action_log_prob", "state_value"


class Operator(TensorDictModule):  # type: ignore[misc]
    """A module that gives one tensor, which is written without looking at what else it could be.

    The base class looks for pandas at each write, on the disk where it is not installed.
    """

    def _write_to_tensordict(
        self,
        tensordict: TensorDictBase,
        tensors: list[torch.Tensor],
        tensordict_out: TensorDictBase | None = None,
        out_keys: Any = None,
    ) -> TensorDictBase:
        if tensordict_out is not None or out_keys is not None or self.inplace is not True:
            return super()._write_to_tensordict(tensordict, tensors, tensordict_out, out_keys)
        return tensordict.set(self.out_keys_source[0], tensors[0])


class PolicyModule(nn.Module):
    """A policy alone: observations to parameters of its distribution.

    Args:
        body: of the policy.
        head: of the policy.
        encoder: turns observations into real numbers.
        mask: rules out choices that observations do not allow; None: all are allowed.
    """

    def __init__(
        self, body: nn.Module, head: nn.Module, encoder: Encoder, mask: ActionMask | None
    ) -> None:
        super().__init__()
        self.body, self.head = body, head
        self._encode, self._mask = encoder.torch, mask

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to ``[..., P]``."""
        params: torch.Tensor = self.head(self.body(self._encode(observation)))
        return params if self._mask is None else self._mask.torch(params, observation)


class ValueModule(nn.Module):
    """A critic alone: observations to values with a last dimension of 1."""

    def __init__(self, body: nn.Module, head: nn.Module, encoder: Encoder) -> None:
        super().__init__()
        self.body, self.head = body, head
        self._encode = encoder.torch

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to ``[..., 1]``."""
        value: torch.Tensor = self.head(self.body(self._encode(observation)))
        return value


def policy_operator(policy: PolicyModule, distribution: ActionDistribution) -> ProbabilisticActor:
    """``observation`` to ``params``, ``action`` and ``action_log_prob``.

    Actions are drawn, unless a context of ``set_exploration_type`` asks for the likeliest ones.
    """
    return ProbabilisticActor(
        Operator(policy, [OBSERVATION], [PARAMS]),
        in_keys=[PARAMS],
        out_keys=[ACTION],
        distribution_class=ParametersDistribution,
        distribution_kwargs={"of": distribution},
        return_log_prob=True,
        log_prob_key=LOG_PROB,
        default_interaction_type=InteractionType.RANDOM,
    )


def value_operator(value: ValueModule) -> TensorDictModule:
    """``observation`` to ``state_value``."""
    return Operator(value, [OBSERVATION], [VALUE])
