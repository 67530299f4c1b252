"""The loss of the advantage actor-critic (Mnih et al., arXiv 1602.01783, section 4).

With A the advantage of an action: the mean of -log pi(action) A, a value loss and an entropy bonus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from plugrl.trainers.objectives.actor_critic import ActorCriticObjective

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class A2cObjective(ActorCriticObjective):
    """Policy, value and entropy loss of A2C for the rows of a minibatch.

    Reads ``observation``, ``action``, ``advantage``, ``value_target`` and, with ``clip_value``,
    ``state_value``. It supposes that the rows were collected with the present policy, which holds
    for one pass over a batch in one minibatch.
    """

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]``."""
        parameters, value = self.agent.policy_and_value(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        return {
            "loss_objective": -(log_prob * self._advantage(td, log_prob)).mean(),
            "loss_critic": self._critic_loss(value, td),
            **self._entropy_terms(entropy),
        }
