"""Advantages, baselines and clipped losses as functions of tensors, for every trainer.

Rows run along the first dimension and time along the last: steps of an environment, or tokens of a
sequence. Nothing here knows a batch, a configuration or a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

#: Largest logarithm of a ratio of which an exponential is taken.
LARGEST_LOGRATIO = 20.0


# ----------------------------------------------------------------------------------- advantages


@torch.no_grad()
def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    gamma: float,
    lmbda: float,
    *,
    next_values: torch.Tensor | None = None,
    terminated: torch.Tensor | None = None,
    done: torch.Tensor | None = None,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Generalised advantage estimation, ``[B, T]``.

    Source: arXiv 1506.02438, equations 11 and 16. With D the step's done and E its terminated:
    delta_t = r_t + gamma (1 - E_t) V(next_t) - V_t, A_t = delta_t + gamma lambda (1 - D_t) A_(t+1).

    Args:
        rewards: ``[B, T]``.
        values: V ``[B, T]``, of the state that the action was chosen in.
        gamma: the discount.
        lmbda: weight of longer returns: 0 one step, 1 the whole return.
        next_values: ``[B, T]``, of the state that followed, at an end the true last one. None: the
            value of the row's next valid step, and 0 behind an end and behind the last one.
        terminated: ``[B, T]``, the episode ended in a state that is worth nothing. None: never.
        done: ``[B, T]``, the episode ended in this step in whatever way. None: never.
        valid: ``[B, T]``; steps where it is false are passed over: they get 0, and no number of
            theirs reaches another step. None: all are valid.
    """
    none = torch.zeros_like(values, dtype=torch.bool)
    done = none if done is None else done
    if next_values is None:
        next_values = torch.where(done, 0.0, _next_valid(values, valid))
    if terminated is not None:
        next_values = torch.where(terminated, 0.0, next_values)
    delta = rewards + gamma * next_values - values
    return discounted_sum(delta, gamma * lmbda, done=done, valid=valid)


@torch.no_grad()
def gae_in_turns(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    lmbda: float,
    *,
    acting: torch.Tensor,
    waiting: torch.Tensor,
    known: torch.Tensor,
) -> torch.Tensor:
    """Advantages of the own steps of agents that take turns, ``[B, T]``; 0 elsewhere.

    What an agent earns while it waits belongs to its last own step, discounted step by step. From
    an own step at t to the next one k steps later, with g the discount:
    delta = r_t + g r_(t+1) + ... + g^(k-1) r_(t+k-1) + g^k V_(t+k) - V_t, A_t = delta + g^k lambda
    A_(t+k). An end between the two is the end of the step at t.

    Args:
        rewards: ``[B, T]``.
        values: ``[B, T]``; read at own steps.
        next_values: ``[B, T]``; read where an episode was cut off, and in the last column.
        terminated: ``[B, T]``, the episode ended in a state that is worth nothing.
        done: ``[B, T]``, the episode ended in this step in whatever way.
        gamma: the discount, of each step.
        lmbda: weight of longer returns, of each own step.
        acting: ``[B, T]``, own steps.
        waiting: ``[B, T]``, steps of others in which the agent takes part. Steps that are neither
            are passed over, and no number of theirs reaches another step.
        known: ``[B, T]``, the own steps of which it is known what they led to. Others get 0, and
            those before them end with their value.
    """
    bootstrap = torch.where(terminated, 0.0, next_values)
    # What a step leads to is worth its own value, or what is earned until there is an own step.
    going = torch.where(done, 0.0, 1.0)
    ahead = torch.where(done, bootstrap, 0.0)
    reached = torch.where(acting, values, torch.where(waiting, rewards + gamma * ahead, ahead))
    keep = torch.where(acting, 0.0, torch.where(waiting, gamma * going, going))
    last = next_values[:, -1]
    following = torch.cat([_backward_sum(reached, keep, last)[:, 1:], last[:, None]], 1)
    next_values = torch.where(done, bootstrap, following)
    delta = torch.where(acting & known, rewards + gamma * next_values - values, 0.0)
    decay = torch.where(waiting, gamma, 1.0)
    decay = torch.where(acting, torch.where(known, gamma * lmbda, 0.0), decay)
    return torch.where(acting, _backward_sum(delta, decay * going), 0.0)


@torch.no_grad()
def discounted_sum(
    rewards: torch.Tensor,
    gamma: float,
    *,
    done: torch.Tensor | None = None,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """``G_t = r_t + gamma (1 - done_t) G_(t+1)`` over the valid steps of a row, ``[B, T]``.

    Args:
        rewards: ``[B, T]``.
        gamma: the discount, counted in valid steps.
        done: ``[B, T]``, the episode ended in this step. None: a row is one episode.
        valid: ``[B, T]``; others are passed over and get 0. None: all are valid.
    """
    keep = torch.full_like(rewards, gamma)
    if valid is not None:
        rewards = torch.where(valid, rewards, 0.0)
        keep = torch.where(valid, keep, 1.0)
    if done is not None:
        keep = torch.where(done, 0.0, keep)
    sums = _backward_sum(rewards, keep)
    return sums if valid is None else torch.where(valid, sums, 0.0)


def _next_valid(values: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """The value of the next valid step of the row, ``[B, T]``; 0 behind the last one."""
    if valid is None:
        found = values
    else:
        found = _backward_sum(torch.where(valid, values, 0.0), torch.where(valid, 0.0, 1.0))
    return torch.nn.functional.pad(found[:, 1:], (0, 1))


def _backward_sum(
    gain: torch.Tensor, keep: torch.Tensor, last: torch.Tensor | None = None
) -> torch.Tensor:
    """``x_t = gain_t + keep_t x_(t+1)`` along time, ``[B, T]``, with ``last`` (``[B]``) behind it.

    The one recursion of this file: everything above is a sum of this form. It is worked out by
    doubling: once x_t holds the sum over w steps, x_t + keep_t x_(t+w) is that over 2 w, keep_t
    being the product over the first w. So T steps take log2(T) operations on whole tensors.
    """
    sums = gain
    if last is not None:
        sums = gain.clone()
        sums[:, -1] += keep[:, -1] * last
    width, steps = 1, gain.shape[1]
    while width < steps:
        nearer, later = sums[:, :-width], sums[:, width:]
        joined = torch.addcmul(nearer, keep[:, : steps - width], later)
        sums = torch.cat([joined, sums[:, -width:]], 1)
        # Products that would reach behind the end are not needed.
        keep = keep[:, :-width] * keep[:, width:]
        width *= 2
    return sums


# ------------------------------------------------------------------------------ group baselines


class GroupStatistics(NamedTuple):
    """Rewards of runs beside those of their group, each ``[R]`` in float64; 0 at invalid rows.

    Fields:
        rewards: mean reward of the row's run.
        mean: mean over the runs of the group.
        std: their sample standard deviation (one degree of freedom); infinite where there is
            nothing to compare, in a group of one run or of equal rewards and at invalid rows, so
            that what is divided by it is 0.
        runs: how many runs the group has.
    """

    rewards: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    runs: torch.Tensor


def group_statistics(
    rewards: torch.Tensor, group: torch.Tensor, run: torch.Tensor, valid: torch.Tensor
) -> GroupStatistics:
    """Compare the runs of each group.

    A run may have several rows, such as one for each agent that took part; it counts once in its
    group, with the mean of its valid rows.

    Args:
        rewards: ``[R]``.
        group: numbers of the prompts, ``[R]``.
        run: numbers of the attempts at each prompt, ``[R]``.
        valid: rows that count, ``[R]``.
    """
    rows = valid.nonzero().flatten()
    # One number for each pair of a group and a run: pairs themselves are sorted far slower.
    _, group_of_row = torch.unique(group[rows], return_inverse=True)
    names, run_of_row = torch.unique(run[rows], return_inverse=True)
    stride = max(1, len(names))
    pairs, pair_of_row = torch.unique(group_of_row * stride + run_of_row, return_inverse=True)
    group_of_run = pairs // stride

    of_run = mean_by(rewards[rows].double(), pair_of_row, len(pairs))
    runs = torch.bincount(group_of_run)
    mean = mean_by(of_run, group_of_run, len(runs))
    squares = mean_by((of_run - mean[group_of_run]).square(), group_of_run, len(runs)) * runs
    std = (squares / (runs - 1).clamp_min(1)).sqrt()
    # Rewards are float32, so a relative deviation below 1e-9 is rounding: they are equal.
    std = torch.where(std > 1e-9 * mean.abs(), std, torch.inf)

    def of_rows(numbers: torch.Tensor, elsewhere: float = 0.0) -> torch.Tensor:
        filled = torch.full((len(valid),), elsewhere, dtype=torch.float64)
        return filled.index_copy_(0, rows, numbers.double())

    return GroupStatistics(
        of_rows(of_run[pair_of_row]),
        of_rows(mean[group_of_row]),
        of_rows(std[group_of_row], elsewhere=torch.inf),
        of_rows(runs[group_of_row]),
    )


def mean_by(values: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Mean of ``values`` for each number in ``index``, ``[size]``; 0 for numbers without any."""
    totals = torch.zeros(size, dtype=values.dtype).index_add_(0, index, values)
    return totals / torch.bincount(index, minlength=size).clamp_min(1)


def whiten(values: torch.Tensor, mask: torch.Tensor, epsilon: float) -> torch.Tensor:
    """``values`` less their mean over ``mask``, by their population deviation; 0 elsewhere.

    Values that are equal up to rounding become 0.
    """
    kept = values[mask].double()
    if not len(kept):
        return torch.zeros_like(values)
    mean, std = kept.mean(), kept.std(correction=0)
    if float(std) <= 1e-6 * float(kept.abs().max()):
        return torch.zeros_like(values)
    return torch.where(mask, (values - mean) / (std + epsilon), 0.0).to(values.dtype)


# -------------------------------------------------------------------------------------- losses


def clipped_surrogate(
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    low: float,
    high: float,
    dual: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped policy-gradient loss, to be minimised, and where the clip takes effect.

    Source: PPO (arXiv 1707.06347), equation 7, with separate lower and upper ranges (DAPO, arXiv
    2503.14476, equation 10) and the dual clip for negative advantages (arXiv 1912.09729, equation
    5). With r the ratio: max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 at most -A dual.

    Args:
        ratio: of the action's probability to that under the policy that took it, in any shape.
        advantages: in the same shape.
        low: the ratio is clipped below at 1 - this.
        high: the ratio is clipped above at 1 + this.
        dual: bound of the ratio's effect at negative advantages, above 1; None: none.

    Returns:
        The loss and a mask of the elements whose gradient the ratio's clip ends, both in the shape
        of ``ratio``.
    """
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * ratio.clamp(1 - low, 1 + high)
    pg_loss = torch.maximum(pg_loss1, pg_loss2)
    if dual is not None:
        pg_loss3 = -advantages * dual
        pg_loss = torch.where(advantages < 0, torch.minimum(pg_loss, pg_loss3), pg_loss)
    return pg_loss, pg_loss2 > pg_loss1


def clipped_value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    clip: float,
    distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distance of values from returns as PPO clips it, and where the clip takes effect.

    A value that moved further than ``clip`` from the old one counts as if it had moved just so
    far, where that makes the distance larger.

    Args:
        values: of the value head as it is.
        old_values: of the value head before the update, in the shape of ``values``.
        returns: what is learnt, in the same shape.
        clip: the largest move.
        distance: such as a squared error, for each element.
    """
    v_clipped = old_values + (values - old_values).clamp(-clip, clip)
    v_loss1, v_loss2 = distance(values, returns), distance(v_clipped, returns)
    return torch.maximum(v_loss1, v_loss2), v_loss2 > v_loss1


def k1(logratio: torch.Tensor) -> torch.Tensor:
    """The estimate -log r of KL(q || p) at samples of q, with r = p / q.

    Source of k1, k2 and k3: J. Schulman, "Approximating KL divergence" (2020).
    """
    return -logratio


def k2(logratio: torch.Tensor) -> torch.Tensor:
    """The estimate (log r)^2 / 2 of KL(q || p), in the shape of ``logratio``."""
    return 0.5 * logratio.square()


def k3(logratio: torch.Tensor) -> torch.Tensor:
    """The estimate r - 1 - log r of KL(q || p), never negative, in the shape of ``logratio``.

    The exponent is kept within [-20, 20], so that no element makes a sum infinite. The gradient is
    that of the capped exponential: without it, an element beyond the cap would be pushed further
    away by the linear term.
    """
    bounded = logratio.clamp(-LARGEST_LOGRATIO, LARGEST_LOGRATIO)
    capped = logratio + (bounded - logratio).detach()
    return capped.exp() - 1 - logratio
