"""``dqn``: deep Q-learning, with one or two networks choosing what the next step is worth.

With ``Q`` the trained and ``Q'`` the target network, an update on a minibatch of old steps is::

    td_target = reward + gamma (1 - terminated) max_a Q'(next observation, a)
    loss      = mean distance(Q(observation, action), td_target)
    one step of Adam

and ``Q'`` moves to ``Q`` after every ``dqn.target_update_interval`` steps of the environments. It
rests while the updates after a step are made, so that one pass gives the targets of them all.
Double Q-learning takes ``Q'(next observation, argmax_a Q(next observation, a))`` instead of the
largest value. Actions are collected at random with a probability that falls, else by the largest
``Q``. :class:`DqnLoss` is the loss; :class:`OffPolicyTrainer` collects, keeps old steps and calls
:meth:`DqnTrainer._update` after every ``dqn.train_freq`` steps.

Sources: Mnih et al. (2015), Human-level control through deep reinforcement learning; van Hasselt
et al. (2015), arXiv 1509.06461.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.distributions.discrete import Categorical
from plugrl.core.tensordict.collect.exploration import EpsilonGreedy, Explorer
from plugrl.core.tensordict.environment.vector_environment import space_text
from plugrl.core.tensordict.off_policy import (
    OffPolicyLearner,
    OffPolicyRlConfig,
    OffPolicyTrainer,
    ReplayConfig,
)
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.critics import DISTANCES, Distance, polyak_update

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass
class DqnRlConfig(OffPolicyRlConfig):
    """``rl`` with the defaults of ``dqn``."""

    minibatch_size: int = described(32, "old steps of one update", at_least=1, at_most=10**9)
    lr: float = described(1e-4, "learning rate of Adam", above=0, at_most=10)
    max_grad_norm: float | None = described(
        10.0, "largest gradient norm of a policy; null: any", above=0, at_most=1e9
    )
    loss_critic_type: Distance = described("smooth_l1", "distance of a value from its target")


@dataclass
class DqnConfig(ReplayConfig):
    """Deep Q-learning."""

    train_freq: int = described(
        4, "real steps of each environment between updates", at_least=1, at_most=10**9
    )
    double: bool = described(False, "choose the next action with the trained network")
    tau: float = described(
        1.0, "the part of its way that the target network moves each time", at_least=0, at_most=1
    )
    target_update_interval: int = described(
        10_000,
        "real steps over all environments between moves of the target network",
        at_least=1,
        at_most=10**9,
    )
    exploration_fraction: float = described(
        0.1,
        "part of all steps over which the probability of random actions falls",
        at_least=0,
        at_most=1,
    )
    exploration_initial_eps: float = described(
        1.0, "that probability at first", at_least=0, at_most=1
    )
    exploration_final_eps: float = described(
        0.05, "that probability from then on", at_least=0, at_most=1
    )


class DqnLoss(nn.Module):
    """The loss of an agent whose policy head gives the value of each discrete action.

    Args:
        agent: ``agent.policy(observation)`` gives ``[B, actions]``.
        gamma: discount factor.
        double: choose the next action with the trained network.
        distance: of a value from its target.
        tau: the part of its way that the target network moves in :meth:`update_targets`.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        gamma: float = 0.99,
        double: bool = False,
        distance: Distance = "smooth_l1",
        tau: float = 1.0,
    ) -> None:
        super().__init__()
        self.agent = agent
        self.target = copy.deepcopy(agent).requires_grad_(False)
        self._first_action = int(getattr(agent.distribution, "start", 0))
        # ``nn.Module`` has a method called double.
        self.gamma, self.is_double, self.tau = gamma, double, tau
        self.distance = DISTANCES[distance]
        self._moving = [*self.target.parameters()], [*agent.parameters()]

    def forward(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """``loss_qvalue`` and the mean ``qvalue`` of steps ``[B]`` with discrete actions.

        What :meth:`td_target` gives may be among the steps as ``td_target`` already.
        """
        index = td["action"].long().view(-1, 1)
        if self._first_action:
            index = index - self._first_action
        q = self.agent.policy(td["observation"]).gather(-1, index).squeeze(-1)
        td_target = td["td_target"] if "td_target" in td else self.td_target(td)
        loss = self.distance(q, td_target)
        return {"loss_qvalue": loss, "qvalue": q.detach().mean()}

    @torch.no_grad()
    def td_target(self, td: TensorDict) -> torch.Tensor:
        """What the values of steps ``[B]`` are moved towards, ``[B]``."""
        following = td["next"]
        next_observation, reward = following["observation"], following["reward"].squeeze(-1)
        # An episode that was cut off could have gone on, so that only a terminal state is worth 0.
        nonterminal = following["terminated"].squeeze(-1).logical_not()
        next_q = self.target.policy(next_observation)
        if self.is_double:
            # One network chooses and the other one judges, so that errors of one are not sought
            # out by its own maximum.
            best = self.agent.policy(next_observation).argmax(-1, keepdim=True)
            next_q = next_q.gather(-1, best).squeeze(-1)
        else:
            next_q = next_q.amax(-1)
        td_target: torch.Tensor = reward + self.gamma * nonterminal * next_q
        return td_target

    def update_targets(self) -> None:
        """Move the target network towards the trained one."""
        polyak_update(*self._moving, self.tau)


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
        """Refuse actions that are not one of several, and masks, which random ones would break."""
        if not isinstance(agent.distribution, Categorical):
            remedy = (
                "sac, td3 or vanilla_ppo" if isinstance(agent.spaces.action, Box) else "vanilla_ppo"
            )
            raise ConfigError(
                f"dqn chooses one of several actions, and those of agent {agent.name} are "
                f"{space_text(agent.spaces.action)}; take {remedy}"
            )
        if agent.mask is not None:
            raise ConfigError(
                "dqn explores by actions at random, some of which the action_mask of agent "
                f"{agent.name} forbids; take vanilla_ppo, a2c or reinforce"
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

    def _precompute(self, learner: OffPolicyLearner, rows: TensorDict) -> TensorDict:
        loss = learner.loss_module
        # The choices of double Q-learning change with each update, and a compiled graph takes no
        # longer for a part than for all.
        if isinstance(loss, DqnLoss) and not (loss.is_double or learner.is_compiled):
            rows["td_target"] = loss.td_target(rows)
        return rows

    def _update(self, learner: OffPolicyLearner, minibatch: TensorDict, not_finite: Any) -> None:
        # The target network does not move with updates, but with steps of the environments.
        learner.learn_from(minibatch, not_finite)

    def _after_real_step(self, steps: int) -> None:
        count = self._collector.environment.num_envs
        if steps % max(1, self.algorithm.target_update_interval // count) == 0:
            for learner in self._learners.values():
                cast(DqnLoss, learner.loss_module).update_targets()
