"""What agents lose, as a function of the parameters of all of them.

The loss of agent i has as its derivatives, of first order and mixed, estimates of those of its
expected return. With w_t the sum over agents of log p(action) - log p_collected(action) in step t,
zero for those who do not act, and A_i,t what the step was worth to agent i::

    L_i = - sum_t stop(past_t) (g_t - [g_t]) / steps of i,    past_t = sum of w_s before t
    g_t = exp(w_t) A_i,t, or as in PPO the smaller of that and exp(clipped w_t) A_i,t
    stop(x) = exp(x - [x]),                                   [x]: x as a constant

Its value is 0. Its gradient by an agent is the policy gradient of that agent's steps, weighed by
what they were worth to i. Derivatives by two agents hold both what two did in one step, and what
one did before the other acted, as agents that take turns do.

Source: Farquhar et al., arXiv 1909.10549 (Loaded DiCE), equation 14 with lambda 1, with ratios for
steps that an earlier policy took.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from plugrl.trainers.objectives.actor_critic import ActorCriticObjective

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class Terms(NamedTuple):
    """What a policy says of rows.

    Attributes:
        log_ratio: ``[rows]``, log p(action) less that of the collection.
        losses: of the value head and entropy.
        entropy: their mean entropy.
    """

    log_ratio: torch.Tensor
    losses: dict[str, torch.Tensor]
    entropy: torch.Tensor


class SpgObjective(ActorCriticObjective):
    """Terms of the losses of ``spg`` for the rows of one policy.

    Args:
        agent: the networks.
        clip_epsilon: bound of the ratio around 1; None: there is none.
        options: as of :class:`ActorCriticObjective`.
    """

    def __init__(self, agent: Any, *, clip_epsilon: float | None = None, **options: Any) -> None:
        super().__init__(agent, **options)
        self.clip_epsilon = clip_epsilon

    def terms(self, td: TensorDictBase) -> Terms:
        """What the policy says of ``td [rows]``."""
        parameters, value = self.agent.policy_and_value(td["observation"])
        log_prob, entropy = self.agent.distribution.log_prob_and_entropy(parameters, td["action"])
        terms = self._entropy_terms(entropy)
        mean = terms.pop("entropy")
        losses = {"loss_critic": self._critic_loss(value, td), **terms}
        return Terms(log_prob - td["action_log_prob"].reshape(log_prob.shape), losses, mean)

    def forward(self, td: TensorDictBase) -> dict[str, torch.Tensor]:
        """Losses and metrics of ``td [rows]`` for a policy that nobody responds to."""
        terms = self.terms(td)
        advantage = self._advantage(td, terms.log_ratio)
        gain = gains(terms.log_ratio, clipped(terms.log_ratio, self.clip_epsilon), advantage)
        return {"loss_objective": -gain.mean(), **terms.losses, "entropy": terms.entropy}


def clipped(log_ratio: torch.Tensor, epsilon: float | None) -> torch.Tensor:
    """Log-ratios whose ratios are within ``epsilon`` of 1; None: as they are."""
    if epsilon is None:
        return log_ratio
    return log_ratio.clamp(math.log1p(-epsilon), math.log1p(epsilon))


def gains(log_ratio: torch.Tensor, bounded: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """g of the module, for log-ratios and those that were clipped."""
    gain = log_ratio.exp() * advantage
    return gain if bounded is log_ratio else torch.minimum(gain, bounded.exp() * advantage)


def surrogate_losses(
    log_ratios: Mapping[str, torch.Tensor],
    advantages: Mapping[str, torch.Tensor],
    counts: Mapping[str, int],
    begins: torch.Tensor,
    epsilon: float | None = None,
) -> dict[str, torch.Tensor]:
    """L_i of the module for each agent of ``advantages``; scalars of value 0.

    Args:
        log_ratios: ``[R, T]`` for each agent that learns; 0 where it does not act.
        advantages: ``[R, T]``; 0 where it is not known what the step was worth to the agent.
        counts: how many steps of its own each agent has.
        begins: ``[R, T]``, the step is the first one of an episode.
        epsilon: bound of each agent's ratio around 1; None: there is none.
    """
    total = torch.stack(list(log_ratios.values())).sum(0)
    bounded = total
    if epsilon is not None:
        bounded = torch.stack([clipped(each, epsilon) for each in log_ratios.values()]).sum(0)
    past = _before(total, begins)
    weight = (past - past.detach()).exp()
    losses = {}
    for agent, advantage in advantages.items():
        gain = gains(total, bounded, advantage)
        losses[agent] = -(weight * (gain - gain.detach())).sum() / max(1, counts[agent])
    return losses


def _before(values: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """The sums of ``values [R, T]`` over the earlier steps of each episode."""
    sums = values.cumsum(1) - values
    steps = torch.arange(values.shape[1], device=values.device).expand_as(begins)
    first = torch.where(begins, steps, 0).cummax(1).values
    return sums - sums.gather(1, first)
