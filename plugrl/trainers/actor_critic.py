"""What trainers of continuous actions share that have critics of observation and action."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from gymnasium.spaces import Box, Discrete

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agents import Agent
from plugrl.core.tensordict.agents.continuous import SquashedNormal
from plugrl.core.tensordict.agents.distributions import told
from plugrl.core.tensordict.off_policy import OffPolicyTrainer, ReplayConfig
from plugrl.trainers.objectives.values import Critics


@dataclass
class TwinCriticsConfig(ReplayConfig):
    """What learners from old steps have that ask two critics."""

    critic_hidden: list[int] = described([256, 256], "widths of the layers of both critics")
    tau: float = described(0.005, "part of its way that a target network moves each time")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1:
            raise ConfigError("tau must be more than 0 and at most 1")
        if any(width < 1 for width in self.critic_hidden):
            raise ConfigError("critic_hidden must be widths of at least 1")


class ContinuousTrainer(OffPolicyTrainer):
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
                f"{agent.name} are {told(agent.spaces.action)}; take {remedy}"
            )

    def _bounded(self) -> SquashedNormal:
        """The distribution of :attr:`agent`."""
        return cast(SquashedNormal, self.agent.distribution)

    def _critics(self) -> Critics:
        """New critics for :attr:`agent`, whose weights its name and the seed decide."""
        return Critics(
            math.prod(self.agent.encoder.shape),
            cast(Box, self.agent.spaces.action),
            self.algorithm.critic_hidden,
            generator=self._generator("critics", "cpu"),
        )
