"""``sac``: soft actor-critic, which earns reward while it acts as randomly as it may.

With ``pi`` the policy, ``Q1, Q2`` the critics, a prime for target networks, ``alpha`` the
temperature and ``H`` the entropy that is aimed at, an update on a minibatch of old steps is::

    a'          ~ pi(next observation)
    td_target   = reward + gamma (1 - terminated)
                           (min_i Qi'(next observation, a') - alpha log pi(a'))
    loss_qvalue = sum_i mean distance(Qi(observation, action), td_target)
    loss_actor  = mean(alpha log pi(a) - min_i Qi(observation, a))      a ~ pi(observation)
    loss_alpha  = -log alpha mean(log pi(a) + H)
    one step of Adam along the sum of the three, then Qi' <- Qi' + tau (Qi - Qi')

:class:`SacLoss` is all of this but the last line, which :class:`OffPolicyTrainer` does in
``_update``, after every ``sac.train_freq`` steps of the environments.

Sources: Haarnoja et al. (2018), arXiv 1801.01290 and 1812.05905.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.distributions.continuous import SquashedNormal
from plugrl.core.tensordict.off_policy import OffPolicyRlConfig
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
class SacConfig(TwinCriticsConfig):
    """Soft actor-critic."""

    alpha: float = described(
        1.0,
        "temperature, the weight of the entropy; with auto_alpha at first",
        above=0,
        at_most=1000,
    )
    auto_alpha: bool = described(True, "let the temperature keep the entropy near target_entropy")
    target_entropy: float | None = described(
        None,
        "in nats, of actions scaled to -1 to 1; null: minus the numbers of an action",
        at_least=-1e6,
        at_most=1e6,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_entropy is not None and not self.auto_alpha:
            raise ConfigError("target_entropy has no effect without auto_alpha; leave it out")


class SacLoss(nn.Module):
    """The losses of a stochastic policy, its critics and the temperature.

    Args:
        agent: its actions are squashed into their bounds, and can be differentiated.
        critics: two networks.
        gamma: discount factor.
        tau: the part of their way that target networks move in :meth:`update_targets`.
        alpha: the temperature at first.
        target_entropy: ``H`` of the module; None: the temperature stays as it is.
        distance: of a value from its target.
        generator: draws actions.
    """

    def __init__(
        self,
        agent: Agent,
        critics: Critics,
        *,
        gamma: float = 0.99,
        tau: float = 0.005,
        alpha: float = 1.0,
        target_entropy: float | None = None,
        distance: Distance = "l2",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.agent, self.critics = agent, critics
        self.distribution = cast(SquashedNormal, agent.distribution)
        self.target_critics = copy.deepcopy(critics).requires_grad_(False)
        # Of its logarithm, so that the temperature stays positive whatever the optimizer does.
        self.log_alpha = nn.Parameter(
            torch.tensor(math.log(alpha)), requires_grad=target_entropy is not None
        )
        self.gamma, self.tau = gamma, tau
        self.distance = DISTANCES[distance]
        self.target_entropy = target_entropy
        self.generator = generator
        self._moving = [*self.target_critics.parameters()], [*critics.parameters()]

    def forward(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """The losses, and ``qvalue``, ``alpha`` and ``entropy``, of steps ``[B]``."""
        encoded = self.agent.encode(td["observation"])
        alpha = self.log_alpha.detach().exp()
        drawn = td if "noise" in td else self.draw_noise(td)

        # Both critics learn the same target: the smaller of two estimates, because the policy
        # seeks out whatever a single critic overestimates.
        q = self.critics(encoded, td["action"])
        td_target = self._td_target(td, alpha, drawn["next_noise"])
        loss_qvalue = len(q) * self.distance(q, td_target.expand_as(q))

        # The policy climbs the critics through its reparameterised action. Their weights are held,
        # so that the sum of all losses can be differentiated at once.
        action, log_prob = self._action(td["observation"], drawn["noise"])
        min_q = self.critics(encoded, action, frozen=True).amin(0)
        loss_actor = (alpha * log_prob - min_q).mean()

        entropy = -log_prob.detach().mean()
        losses = {
            "loss_qvalue": loss_qvalue,
            "loss_actor": loss_actor,
            "qvalue": q.detach().mean(),
            "alpha": alpha,
            "entropy": entropy,
        }
        if self.target_entropy is not None:
            # Too little entropy raises the temperature, too much lowers it.
            losses["loss_alpha"] = self.log_alpha * (entropy - self.target_entropy)
        return losses

    def draw_noise(self, td: TensorDict) -> dict[str, torch.Tensor]:
        """The noise ``[B, numbers]`` of both kinds of actions, which is drawn before all else."""
        shape = (len(td["action"]), self.distribution.size)
        device = td["action"].device
        return {
            name: torch.randn(shape, generator=self.generator, device=device)
            for name in ("next_noise", "noise")
        }

    @torch.no_grad()
    def _td_target(self, td: TensorDict, alpha: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        following = td["next"]
        next_observation, reward = following["observation"], following["reward"].squeeze(-1)
        # An episode that was cut off could have gone on, so that only a terminal state is worth 0.
        nonterminal = following["terminated"].squeeze(-1).logical_not()
        next_action, next_log_prob = self._action(next_observation, noise)
        next_q = self.target_critics(self.agent.encode(next_observation), next_action).amin(0)
        td_target: torch.Tensor
        td_target = reward + self.gamma * nonterminal * (next_q - alpha * next_log_prob)
        return td_target

    def _action(
        self, observation: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """An action and its log-density, in the units of the environment."""
        return self.distribution.moved(self.agent.policy(observation), noise)

    def update_targets(self) -> None:
        """Move the target critics towards the trained ones."""
        polyak_update(*self._moving, self.tau)


class SacTrainer(TwinCriticsTrainer):
    """Soft actor-critic with twin critics and automatic temperature (arXiv 1812.05905)."""

    sections: ClassVar[Mapping[str, Any]] = {
        **TENSORDICT,
        "rl": OffPolicyRlConfig,
        "sac": SacConfig,
    }
    section: ClassVar[str] = "sac"
    #: Updates begin within the few steps of the kit.
    conformance: ClassVar[Mapping[str, Any]] = {
        **TwinCriticsTrainer.conformance,
        "sac": {"learning_starts": 16},
    }
    squash_actions: ClassVar[Any] = True

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl, sac = self.hyper_params.rl, self.algorithm
        loss = SacLoss(
            self.agent,
            self._new_critics(),
            gamma=rl.gamma,
            tau=sac.tau,
            alpha=sac.alpha,
            target_entropy=self._target_entropy() if sac.auto_alpha else None,
            distance=rl.loss_critic_type,
            generator=self._generator("loss", self.device),
        )
        return loss, None

    def _target_entropy(self) -> float:
        distribution = cast(SquashedNormal, self.agent.distribution)
        wanted = self.algorithm.target_entropy
        target_entropy = -distribution.size if wanted is None else wanted
        # The option speaks of actions from -1 to 1, the loss of those of the environment.
        return target_entropy + distribution.log_scale
