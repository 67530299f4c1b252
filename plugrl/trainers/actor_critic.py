"""What trainers of continuous actions share that have critics of observation and action."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from gymnasium.spaces import Box

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.continuous import SquashedNormal
from plugrl.core.tensordict.off_policy import OffPolicyTrainer
from plugrl.trainers.objectives.values import Critics


class ContinuousTrainer(OffPolicyTrainer):
    """Base class of ``sac`` and ``td3``; its section has ``critic_hidden``."""

    #: A task with real numbers for actions.
    conformance: ClassVar[Mapping[str, Any]] = {
        **OffPolicyTrainer.conformance,
        "scenario": {"type": "gymnasium", "id": "Pendulum-v1", "num_envs": 2},
    }

    def _bounded(self) -> SquashedNormal:
        """The distribution of :attr:`agent`.

        Raises:
            ConfigError: its actions are no real numbers.
        """
        distribution = self.agent.distribution
        if not isinstance(distribution, SquashedNormal):
            raise ConfigError(
                f"{self.section} chooses real numbers, and the actions of agent "
                f"{self.agent.name} are {self.agent.spaces.action}; take dqn or vanilla_ppo"
            )
        return distribution

    def _critics(self) -> Critics:
        """New critics for :attr:`agent`, whose weights its name and the seed decide."""
        self._bounded()
        return Critics(
            math.prod(self.agent.encoder.shape),
            cast(Box, self.agent.spaces.action),
            self.algorithm.critic_hidden,
            generator=self._generator("critics", "cpu"),
        )
