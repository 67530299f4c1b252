"""The loss of REINFORCE (Williams 1992, https://doi.org/10.1007/BF00992696).

The mean of -log pi(action) W, where W is the reward to go of the action, or its advantage over
what a value head expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from plugrl.trainers.objectives.actor_critic import ActorCriticObjective

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from plugrl.core.tensordict.agents.agents import Agent


class ReinforceObjective(ActorCriticObjective):
    """Policy loss of REINFORCE for the rows of a minibatch, with a critic its value loss too.

    Reads ``observation``, ``action``, ``advantage`` (with ``critic`` false that is the reward to
    go) and, with ``critic``, ``value_target``.

    Args:
        agent: the networks.
        critic: whether the value head learns.
        options: as of :class:`ActorCriticObjective`.
    """

    def __init__(self, agent: Agent, *, critic: bool = False, **options: Any) -> None:
        super().__init__(agent, **options)
        self.critic = critic

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``."""
        if self.critic:
            parameters, value = self.agent.policy_and_value(td["observation"])
            losses = {"loss_critic": self._critic_loss(value, td)}
        else:
            parameters, losses = self.agent.policy(td["observation"]), {}
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        return {
            "loss_objective": -(log_prob * self._advantage(td, log_prob)).mean(),
            **losses,
            **self._entropy_terms(entropy),
        }
