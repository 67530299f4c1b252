"""``dqn``: deep Q-learning, with one or two networks choosing what the next step is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium.spaces import Box

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agents import Agent
from plugrl.core.tensordict.agents.discrete import Categorical
from plugrl.core.tensordict.agents.distributions import told
from plugrl.core.tensordict.collect.exploration import EpsilonGreedy, Explorer
from plugrl.core.tensordict.learn.off_policy_learner import OffPolicyLearner
from plugrl.core.tensordict.off_policy import OffPolicyRlConfig, OffPolicyTrainer, ReplayConfig
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.objectives.dqn import DqnLoss
from plugrl.trainers.objectives.values import Distance


@dataclass
class DqnRlConfig(OffPolicyRlConfig):
    """``rl`` with the defaults of ``dqn``."""

    minibatch_size: int = described(32, "old steps of one update")
    lr: float = described(1e-4, "learning rate of Adam")
    max_grad_norm: float | None = described(10.0, "largest gradient norm of a policy; null: any")
    loss_critic_type: Distance = described("smooth_l1", "distance of a value from its target")


@dataclass
class DqnConfig(ReplayConfig):
    """Deep Q-learning."""

    train_freq: int = described(4, "real steps of each environment between updates")
    double: bool = described(False, "choose the next action with the trained network")
    tau: float = described(1.0, "the part of its way that the target network moves each time")
    target_update_interval: int = described(
        10_000, "real steps over all environments between moves of the target network"
    )
    exploration_fraction: float = described(
        0.1, "part of all steps over which the probability of random actions falls"
    )
    exploration_initial_eps: float = described(1.0, "that probability at first")
    exploration_final_eps: float = described(0.05, "that probability from then on")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "tau",
            "exploration_fraction",
            "exploration_initial_eps",
            "exploration_final_eps",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be between 0 and 1")
        if self.target_update_interval < 1:
            raise ConfigError("target_update_interval must be at least 1")


class DqnTrainer(OffPolicyTrainer):
    """Deep Q-learning (Mnih et al., 2015): the policy head gives the value of each action.

    The best action is taken, but for a falling part of random ones.
    """

    sections: ClassVar[Mapping[str, Any]] = {**TENSORDICT, "rl": DqnRlConfig, "dqn": DqnConfig}
    section: ClassVar[str] = "dqn"
    #: Updates and moves of the target network begin within the few steps of the kit.
    conformance: ClassVar[Mapping[str, Any]] = {
        **OffPolicyTrainer.conformance,
        "dqn": {"learning_starts": 16, "target_update_interval": 10},
    }

    @classmethod
    def check_actions(cls, agent: Agent) -> None:
        """Refuse actions that are not one of several."""
        if not isinstance(agent.distribution, Categorical):
            remedy = (
                "sac, td3 or vanilla_ppo" if isinstance(agent.spaces.action, Box) else "vanilla_ppo"
            )
            raise ConfigError(
                f"dqn chooses one of several actions, and those of agent {agent.name} are "
                f"{told(agent.spaces.action)}; take {remedy}"
            )

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, dqn = self.hyper_params.rl, self.algorithm
        loss = DqnLoss(
            self.agent,
            gamma=rl.gamma,
            double=dqn.double,
            distance=rl.loss_critic_type,
            tau=dqn.tau,
        )
        return loss, None

    def _explorer(self, actor: Any, distribution: Any, rng: np.random.Generator) -> Explorer:
        rl, dqn = self.hyper_params.rl, self.algorithm
        environment = self.scenario_instance.train_environment
        total = rl.num_iterations * self._steps(environment) * environment.num_envs
        return EpsilonGreedy(
            actor,
            distribution,
            rng,
            dqn.learning_starts,
            initial=dqn.exploration_initial_eps,
            final=dqn.exploration_final_eps,
            over=dqn.exploration_fraction * total,
        )

    def _stepped(self, steps: int) -> None:
        count = self._collector.environment.num_envs
        if steps % max(1, self.algorithm.target_update_interval // count) == 0:
            for learner in self._learners.values():
                cast(DqnLoss, learner.loss_module).update_targets()

    def _update(self, learner: OffPolicyLearner, minibatch: Any, not_finite: Any) -> None:
        learner.update(learner.loss_module(minibatch), not_finite)
