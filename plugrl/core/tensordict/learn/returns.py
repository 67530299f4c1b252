"""Returns and advantages of steps that were collected as arrays ``[T, N]``.

T steps of N environments, of which any may end in the middle: an episode that ended in step t
counts the value of its own last observation (none if it terminated) and nothing of step t + 1.
"""

from __future__ import annotations

import numpy as np


def gae(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    done: np.ndarray,
    gamma: float,
    lmbda: float,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Generalised advantage estimation, ``[T, N]`` in float32.

    Source: arXiv 1506.02438, equations 11 and 16. With D the step's done and E its terminated:
    delta_t = r_t + gamma (1 - E_t) V(next_t) - V_t, A_t = delta_t + gamma lambda (1 - D_t) A_(t+1).

    Args:
        reward: ``[T, N]``.
        value: ``[T, N]``, of the observation that the action was chosen from.
        next_value: ``[T, N]``, of the observation that followed; at an end the true last one.
        terminated: ``[T, N]``, the episode ended in a state that is worth nothing.
        done: ``[T, N]``, the episode ended in this step in whatever way.
        gamma: the discount.
        lmbda: weight of longer returns: 0 one step, 1 the whole return.
        valid: ``[T, N]``; steps where it is false are passed over: they get 0, and no number of
            theirs reaches another step. None: all are valid.
    """
    discounted = np.where(terminated, np.float32(0), np.float32(gamma) * next_value)
    delta = reward + discounted - value
    return _discounted(delta, done, gamma * lmbda, valid)


def gae_in_turns(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    done: np.ndarray,
    gamma: float,
    lmbda: float,
    *,
    acting: np.ndarray,
    waiting: np.ndarray,
    finished: np.ndarray,
) -> np.ndarray:
    """Advantages of the own steps of agents that take turns, ``[T, N]`` in float32; 0 elsewhere.

    What an agent earns while it waits belongs to its last own step, discounted step by step. From
    an own step at t to the next one k steps later, with g the discount:
    delta = r_t + g r_(t+1) + ... + g^(k-1) r_(t+k-1) + g^k V_(t+k) - V_t, A_t = delta + g^k lambda
    A_(t+k). An end between the two is the end of the step at t.

    Args:
        reward: ``[T, N]``.
        value: ``[T, N]``; read at own steps.
        next_value: ``[T, N]``; read where an episode was cut off, and in the last row.
        terminated: ``[T, N]``, the episode ended in a state that is worth nothing.
        done: ``[T, N]``, the episode ended in this step in whatever way.
        gamma: the discount, of each step.
        lmbda: weight of longer returns, of each own step.
        acting: ``[T, N]``, own steps.
        waiting: ``[T, N]``, steps of others in which the agent takes part. Steps that are neither
            are passed over, and no number of theirs reaches another step.
        finished: ``[T, N]``, the own steps of which it is known what they led to. Others get 0,
            and those before them end with their value.
    """
    result = np.zeros(reward.shape, np.float32)
    g = np.float32(gamma)
    ahead, tail = next_value[-1].astype(np.float32), np.zeros(reward.shape[1:], np.float32)
    for t in range(len(reward) - 1, -1, -1):
        own, idle = acting[t], waiting[t]
        if done[t].any():
            ahead = np.where(done[t], np.where(terminated[t], 0, next_value[t]), ahead)
            tail = np.where(done[t], 0, tail)
        future = reward[t] + g * ahead
        advantage = future - value[t] + g * np.float32(lmbda) * tail
        result[t] = np.where(finished[t], advantage, 0)
        ahead = np.where(own, value[t], np.where(idle, future, ahead))
        tail = np.where(own, result[t], np.where(idle, g * tail, tail))
    return result


def reward_to_go(
    reward: np.ndarray,
    done: np.ndarray,
    gamma: float,
    valid: np.ndarray | None = None,
    *,
    terminated: np.ndarray | None = None,
    next_value: np.ndarray | None = None,
) -> np.ndarray:
    """The discounted rewards from each step to the end of its episode, ``[T, N]`` in float32.

    Args:
        reward: ``[T, N]``.
        done: ``[T, N]``, the episode ended in this step.
        gamma: the discount.
        valid: as in :func:`gae`.
        terminated: ``[T, N]``, needed with ``next_value``.
        next_value: ``[T, N]``; where an episode was cut off, by truncation or because the last
            row was collected, the discounted value of what followed is added. None: nothing is.
    """
    if next_value is not None:
        if terminated is None:
            raise ValueError("reward_to_go needs terminated to know which next_value counts")
        cut = done.copy()
        cut[_last_steps(valid, done.shape)] = True
        cut &= ~terminated
        reward = np.where(cut, reward + np.float32(gamma) * next_value, reward)
    return _discounted(reward, done, gamma, valid)


def _last_steps(valid: np.ndarray | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the last valid step of each environment."""
    steps, columns = shape
    if valid is None:
        return np.full(columns, steps - 1), np.arange(columns)
    taking_part = np.flatnonzero(valid.any(axis=0))
    return steps - 1 - valid[::-1, taking_part].argmax(axis=0), taking_part


def _discounted(
    gain: np.ndarray, done: np.ndarray, factor: float, valid: np.ndarray | None
) -> np.ndarray:
    """``x_t = gain_t + factor (1 - done_t) x_(t+1)`` over the valid steps."""
    result = np.array(gain, dtype=np.float32)
    keep = np.where(done, np.float32(0), np.float32(factor))
    if valid is not None:
        # A step that is passed over hands on what comes behind it, unless it ends the episode.
        result[~valid] = 0
        keep = np.where(valid, keep, np.where(done, np.float32(0), np.float32(1)))
    carried = np.zeros(result.shape[1:], dtype=np.float32)
    for row, kept in zip(result[::-1], keep[::-1], strict=True):
        carried *= kept
        carried += row
        row[...] = carried
    if valid is not None:
        result[~valid] = 0
    return result
