"""``td3``: deterministic policy gradients with twin critics and a policy that moves later.

With ``pi`` the policy, ``Q1, Q2`` the critics and a prime for target networks, an update on a
minibatch of old steps is::

    a'          = clip(pi'(next observation) + clip(s e, -c, c), low, high)     e: normal noise
    td_target   = reward + gamma (1 - terminated) min_i Qi'(next observation, a')
    loss_qvalue = sum_i mean distance(Qi(observation, action), td_target)
    loss_actor  = -mean Q1(observation, pi(observation))      in every policy_delay-th update
    one step of Adam; in those updates pi' and Qi' move the part tau of their way to pi and Qi

``s`` and ``c`` are in units of half the range of an action. :class:`Td3Loss` gives the losses and
:meth:`Td3Trainer._update` the order of steps; :class:`OffPolicyTrainer` calls it after every
``td3.train_freq`` steps of the environments.

Source: Fujimoto et al. (2018), arXiv 1802.09477.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.tensordict.collect.exploration import Explorer, GaussianNoise
from plugrl.core.tensordict.learn.loss_contract import move_targets
from plugrl.core.tensordict.off_policy import OffPolicyLearner, OffPolicyRlConfig
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.critics import (
    DISTANCES,
    Critics,
    Distance,
    TwinCriticsConfig,
    TwinCriticsTrainer,
    polyak_update,
)

if TYPE_CHECKING:
    from tensordict import TensorDict

    from plugrl.core.tensordict.agents.agent import Agent


@dataclass
class Td3Config(TwinCriticsConfig):
    """Twin delayed deterministic policy gradients."""

    policy_delay: int = described(
        2, "updates of the critics for one of policy and targets", at_least=1, at_most=10**6
    )
    action_noise: float = described(
        0.1,
        "deviation of the noise of collected actions, in units of half their range",
        at_least=0,
        at_most=1000,
    )
    target_policy_noise: float = described(
        0.2, "deviation of the noise of target actions", at_least=0, at_most=1000
    )
    target_noise_clip: float = described(
        0.5, "bound of the noise of target actions", at_least=0, at_most=1000
    )


class Td3Loss(nn.Module):
    """The losses of a deterministic policy and its critics.

    Args:
        agent: its policy's mode is the action: ``agent.distribution.mode(agent.policy(...))``.
        critics: two networks.
        gamma: discount factor.
        tau: the part of their way that target networks move in :meth:`update_targets`.
        target_policy_noise: ``s`` of the module.
        target_noise_clip: ``c`` of the module.
        distance: of a value from its target.
        generator: draws the noise.
    """

    half_range: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    def __init__(
        self,
        agent: Agent,
        critics: Critics,
        *,
        gamma: float = 0.99,
        tau: float = 0.005,
        target_policy_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        distance: Distance = "l2",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.agent, self.critics = agent, critics
        self.target_agent = copy.deepcopy(agent).requires_grad_(False)
        self.target_critics = copy.deepcopy(critics).requires_grad_(False)
        self.gamma, self.tau = gamma, tau
        self.distance = DISTANCES[distance]
        self.noise, self.noise_clip = target_policy_noise, target_noise_clip
        self.generator = generator
        half_range = (1 / critics.scale).view(agent.spaces.action.shape)
        centre = critics.centre.view(agent.spaces.action.shape)
        self.register_buffer("half_range", half_range, persistent=False)
        self.register_buffer("low", centre - half_range, persistent=False)
        self.register_buffer("high", centre + half_range, persistent=False)
        self._moving = (
            [*self.target_agent.parameters(), *self.target_critics.parameters()],
            [*agent.parameters(), *critics.parameters()],
        )

    def forward(self, td: TensorDict, *, policy: bool = True) -> dict[str, torch.Tensor]:
        """The losses, and the mean ``qvalue``, of steps ``[B]``.

        Args:
            td: the steps.
            policy: false for an update in which the policy rests.
        """
        losses = self.critic_losses(td)
        return {**losses, **self.actor_losses(td)} if policy else losses

    def critic_losses(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """``loss_qvalue`` and the mean ``qvalue``."""
        q = self.critics(self.agent.encode(td["observation"]), td["action"])
        td_target = self._td_target(td)
        # Both critics learn the same target; their losses are added up.
        loss_qvalue = len(q) * self.distance(q, td_target.expand_as(q))
        return {"loss_qvalue": loss_qvalue, "qvalue": q.detach().mean()}

    def actor_losses(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """``loss_actor``, whose gradient reaches the policy alone."""
        action = self.agent.distribution.mode(self.agent.policy(td["observation"]))
        encoded = self.agent.encode(td["observation"])
        return {"loss_actor": -self.critics(encoded, action, frozen=True, count=1).mean()}

    def draw_noise(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """The noise of the target actions ``[B, *action]``."""
        action = td["action"]
        return {"noise": torch.randn(action.shape, generator=self.generator, device=action.device)}

    @torch.no_grad()
    def _td_target(self, td: TensorDict) -> torch.Tensor:
        following = td["next"]
        next_observation, reward = following["observation"], following["reward"].squeeze(-1)
        # An episode that was cut off could have gone on, so that only a terminal state is worth 0.
        nonterminal = following["terminated"].squeeze(-1).logical_not()
        # Noise smooths the target over similar actions, of which one may be overestimated.
        next_action = self.agent.distribution.mode(self.target_agent.policy(next_observation))
        noise = (td if "noise" in td else self.draw_noise(td))["noise"]
        noise = (noise * self.noise).clamp_(-self.noise_clip, self.noise_clip)
        next_action = next_action + noise * self.half_range
        next_action = torch.clamp(next_action, self.low, self.high)
        next_q = self.target_critics(self.agent.encode(next_observation), next_action).amin(0)
        td_target: torch.Tensor = reward + self.gamma * nonterminal * next_q
        return td_target

    def update_targets(self) -> None:
        """Move the target networks towards the trained ones."""
        polyak_update(*self._moving, self.tau)


class Td3Trainer(TwinCriticsTrainer):
    """Twin delayed DDPG (arXiv 1802.09477)."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OffPolicyRlConfig,
        "td3": Td3Config,
    }
    section: ClassVar[str] = "td3"
    #: Updates begin within the few steps of the kit.
    conformance: ClassVar[Mapping[str, Any]] = {
        **TwinCriticsTrainer.conformance,
        "td3": {"learning_starts": 16},
    }
    squash_actions: ClassVar[Any] = "deterministic"

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, td3 = self.hyper_params.rl, self.algorithm
        loss = Td3Loss(
            self.agent,
            self._new_critics(),
            gamma=rl.gamma,
            tau=td3.tau,
            target_policy_noise=td3.target_policy_noise,
            target_noise_clip=td3.target_noise_clip,
            distance=rl.loss_critic_type,
            generator=self._generator("loss", self.device),
        )
        return loss, None

    def _explorer(self, actor: Any, distribution: Any, rng: np.random.Generator) -> Explorer:
        td3 = self.algorithm
        return GaussianNoise(
            actor, distribution, rng, td3.learning_starts, deviation=td3.action_noise
        )

    def _update(self, learner: OffPolicyLearner, minibatch: TensorDict, not_finite: Any) -> None:
        if (learner.updates + 1) % self.algorithm.policy_delay:
            # The policy waits until its critics have settled; its weights and moments rest.
            learner.learn_from(minibatch, not_finite, policy=False)
        else:
            learner.learn_from(minibatch, not_finite)
            move_targets(learner.loss_module)
