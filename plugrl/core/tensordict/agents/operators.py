"""Agents as TorchRL sees them: modules that read and write TensorDicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor

from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.masks import ActionMask
    from plugrl.core.tensordict.agents.observations import Encoder


class ParametersDistribution(torch.distributions.Distribution):
    """An ``ActionDistribution`` at given parameters, as a distribution of torch.

    Args:
        params: ``[..., P]``.
        of: what the parameters describe.
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(self, params: torch.Tensor, of: ActionDistribution) -> None:
        self.params = params
        self.of = of
        self._drawn: tuple[torch.Tensor, torch.Tensor] | None = None
        self._entropy: torch.Tensor | None = None
        super().__init__(params.shape[:-1], torch.Size(of.action_shape), validate_args=False)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether actions can be differentiated: those that are real numbers can."""
        return bool(self.of.action_dtype.kind == "f")

    @property
    def mode(self) -> torch.Tensor:
        """The likeliest action."""
        return self.of.mode(self.params)

    @property
    def deterministic_sample(self) -> torch.Tensor:
        """What TorchRL takes where it does not explore: the mode."""
        return self.mode

    @property
    def logits(self) -> torch.Tensor:
        """Log-probabilities of all choices, where actions are one of several."""
        return self._of_choices("logits")

    @property
    def probs(self) -> torch.Tensor:
        """Probabilities of all choices, where actions are one of several."""
        return self._of_choices("probs").exp()

    def _of_choices(self, name: str) -> torch.Tensor:
        try:
            return self.of.logits(self.params)
        except NotImplementedError as error:
            # As for any attribute that is missing: what reads it may do without.
            raise AttributeError(f"no {name}: {error}") from None

    def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Actions that carry gradients, with ``sample_shape`` in front."""
        params = self.params.expand(*sample_shape, *self.params.shape)
        action, log_prob = self.of.rsample(params)
        # The density of this very action is asked for next, and is exact as it was drawn.
        self._drawn = (action, log_prob)
        return action

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Actions without gradient, with ``sample_shape`` in front."""
        with torch.no_grad():
            return self.of.sample(self.params.expand(*sample_shape, *self.params.shape))

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of actions."""
        if self._drawn is not None and self._drawn[0] is value:
            return self._drawn[1]
        # Losses ask for both, and both together cost little more than one.
        params = self.params
        drawn = value.ndim - len(self.of.action_shape) - (params.ndim - 1)
        if drawn > 0:
            return self.of.log_prob(params.expand(*value.shape[:drawn], *params.shape), value)
        log_prob, self._entropy = self.of.log_prob_and_entropy(params, value)
        return log_prob

    def entropy(self) -> torch.Tensor:
        """Entropy in nats."""
        return self.of.entropy(self.params) if self._entropy is None else self._entropy


@torch.distributions.register_kl(ParametersDistribution, ParametersDistribution)  # type: ignore[no-untyped-call, untyped-decorator]
def _divergence(one: ParametersDistribution, other: ParametersDistribution) -> torch.Tensor:
    return one.of.divergence(one.params, other.params)


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
