"""``Agent``: the networks of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from plugrl.core.tensordict.agents.config import PARTS, is_update_iteration
from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution
from plugrl.core.tensordict.agents.masks import mask_for
from plugrl.core.tensordict.agents.observations import Encoder

if TYPE_CHECKING:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor

    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, Script

Role = Literal["actor", "critic"]


class PartGroup(NamedTuple):
    """Parameters of a part, which learn at one rate: ``rl.lr`` times the factor."""

    part: str
    role: Role
    parameters: list[nn.Parameter]
    lr_factor: float


class Agent(nn.Module):
    """The networks of one policy.

    Args:
        name: of the policy.
        spaces: what its agents see and do.
        encoder: turns what they see into real numbers.
        distribution: over their actions.
        parts: networks by the names in ``PARTS``; none for an agent that acts at random.
        config: the agent's section, with its defaults.

    Attributes:
        is_random: whether it acts uniformly at random, without networks.
        script: what it acts by in the place of networks; None: it has none.
        shared_body: whether the value head reads the features of the policy's body.
        policy_body: ``[..., *encoded observation]`` to ``[..., features]``.
        policy_head: ``[..., features]`` to ``[..., P]``.
        value_body: as ``policy_body``, and the same one where it is shared; None: no critic.
        value_head: ``[..., features]`` to ``[..., 1]``; None: no critic.
        mask: rules out choices that observations do not allow; None: all are allowed.
        solo_head: ``[..., features]`` of ``body`` to ``[..., labels]``; None: it does not learn
            labels alone.
    """

    policy_body: nn.Module | None
    policy_head: nn.Module | None
    value_body: nn.Module | None
    value_head: nn.Module | None
    solo_head: nn.Module | None

    def __init__(
        self,
        name: str,
        spaces: AgentSpaces,
        encoder: Encoder,
        distribution: ActionDistribution,
        parts: Mapping[str, nn.Module],
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.name = name
        self.spaces = spaces
        self.encoder = encoder
        self.distribution = distribution
        self.mask = mask_for(spaces, distribution)
        self.config = config
        self.script: Script | None = None
        self.is_random = not parts
        self.shared_body = "body" in parts
        for part in PARTS:
            if part in parts:
                self.add_module(part, parts[part])
            else:
                # Not through torch, which would list a second name in the state.
                self.__dict__[part] = None
        if self.shared_body:
            self.__dict__["policy_body"] = parts["body"]
            self.__dict__["value_body"] = parts["body"] if "value_head" in parts else None

    def follow(self, script: Script) -> None:
        """Act as ``script`` says, without networks."""
        self.script, self.is_random = script, False

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The networks by name; a shared body is ``body``."""
        return dict(self.named_children())

    def encode(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` as real numbers, as bodies take them."""
        return self.encoder.torch(observation)

    def policy(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to the parameters of the distribution, ``[..., P]``.

        An agent that acts at random gives zeros. Choices that the observation rules out have -inf.
        """
        encoded = self.encoder.torch(observation)
        if self.policy_body is None or self.policy_head is None:
            leading = encoded.shape[: encoded.ndim - len(self.encoder.shape)]
            params = encoded.new_zeros(*leading, self.distribution.parameters)
        else:
            params = self.policy_head(self.policy_body(encoded))
        return params if self.mask is None else self.mask.torch(params, observation)

    def value(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to values, ``[...]``.

        Raises:
            RuntimeError: there is no critic.
        """
        return self._value(self.encoder.torch(observation))

    def policy_and_value(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both, with one pass through a shared body."""
        if not self.shared_body or self.policy_head is None or self.value_head is None:
            return self.policy(observation), self.value(observation)
        assert self.policy_body is not None
        features = self.policy_body(self.encoder.torch(observation))
        params, value = self.policy_head(features), self.value_head(features).squeeze(-1)
        return params if self.mask is None else self.mask.torch(params, observation), value

    def _value(self, encoded: torch.Tensor) -> torch.Tensor:
        if self.value_body is None or self.value_head is None:
            raise RuntimeError(f"agent {self.name!r} has no critic")
        value: torch.Tensor = self.value_head(self.value_body(encoded)).squeeze(-1)
        return value

    def label_logits(self, observation: torch.Tensor) -> torch.Tensor:
        """``[..., *observation]`` to what each label has for it, ``[..., labels]``.

        Raises:
            RuntimeError: the agent was not built to learn labels alone.
        """
        if self.policy_body is None or self.solo_head is None:
            raise RuntimeError(f"agent {self.name!r} has no solo head")
        logits: torch.Tensor = self.solo_head(self.policy_body(self.encoder.torch(observation)))
        return logits

    @cached_property
    def policy_operator(self) -> ProbabilisticActor:
        """In TensorDicts: ``observation`` to ``params``, ``action`` and ``action_log_prob``."""
        from plugrl.core.tensordict.agents.operators import PolicyModule, policy_operator

        assert self.policy_body is not None, "an agent that acts at random has no networks"
        assert self.policy_head is not None
        policy = PolicyModule(self.policy_body, self.policy_head, self.encoder, self.mask)
        return policy_operator(policy, self.distribution)

    @cached_property
    def value_operator(self) -> TensorDictModule | None:
        """In TensorDicts: ``observation`` to ``state_value [..., 1]``; None: no critic."""
        from plugrl.core.tensordict.agents.operators import ValueModule, value_operator

        if self.value_body is None or self.value_head is None:
            return None
        return value_operator(ValueModule(self.value_body, self.value_head, self.encoder))

    def parameter_groups(self) -> list[PartGroup]:
        """The parameters part by part, each with the factor of its learning rate.

        A shared body learns at the actor's rate.
        """
        groups = []
        for part, module in self.parts.items():
            role: Role = "critic" if part.startswith("value") else "actor"
            factor = self.config["agent_lr_factor"][role]
            if part.endswith("body"):
                factor *= self.config["body_lr_factor"][role]
            parameters = list(module.parameters())
            if parameters:
                groups.append(PartGroup(part, role, parameters, float(factor)))
        return groups

    @property
    def is_trained(self) -> bool:
        """Whether any of its weights can change."""
        return any(group.lr_factor > 0 for group in self.parameter_groups())

    def is_updated(self, iteration: int) -> bool:
        """Whether it learns in an iteration; the first one of a run is number 1."""
        return self.is_trained and is_update_iteration(self.config["update_schedule"], iteration)


@dataclass
class Policies:
    """Networks by policy name, and the policy of each agent."""

    policies: dict[str, Agent]
    policy_of: dict[str, str]
