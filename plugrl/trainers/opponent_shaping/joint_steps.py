"""What each step was worth to each agent, whoever took it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from tensordict import TensorDict

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class JointSteps:
    """Steps of N environments as all agents saw them, ``[N, T]`` each.

    Attributes:
        acts: the steps of each agent that can be learned from.
        worth: what each step was worth to each agent over what it expected; 0 if that is unknown.
        known: whether it is.
        begins: the step is the first one of an episode.
    """

    acts: dict[str, torch.Tensor]
    worth: dict[str, torch.Tensor]
    known: dict[str, torch.Tensor]
    begins: torch.Tensor

    def advantages(self, agent: str, rows: torch.Tensor, scaled: bool) -> torch.Tensor:
        """What the steps of some environments were worth to an agent, ``[rows, T]``.

        Args:
            agent: whose return it is.
            rows: the environments.
            scaled: whether own steps get mean 0 and deviation 1 and those of others mean 0 and
                the same scale.
        """
        worth, acts, known = (each[agent][rows] for each in (self.worth, self.acts, self.known))
        others = known & ~acts
        if not scaled or int(acts.sum()) < 2:
            return worth
        deviation, mean = torch.std_mean(worth[acts])
        centred = torch.where(acts, worth - mean, 0.0)
        if bool(others.any()):
            centred = torch.where(others, worth - worth[others].mean(), centred)
        return centred / (deviation + 1e-8)


def joint_steps(batches: Mapping[str, TensorDict], begins: Array, gamma: float) -> JointSteps:
    """What steps were worth, from batches ``[N, T]`` of the same steps, one for each agent.

    Own steps are worth their advantage. A step of others is worth what the agent earned from then
    on to its own next step, and what that one was worth, less the value of its own last step in
    the episode (without one: less the mean of such steps), all of which the batch holds.

    Args:
        batches: with advantages, values and their targets.
        begins: ``[N, T]``, see :func:`first_steps`.
        gamma: the discount.
    """
    acts, worth, known = {}, {}, {}
    for agent, batch in batches.items():
        device = batch["advantage"].device
        own = _array(batch["valid"])
        values = np.where(own, _array(batch["advantage"]), np.float32(0))
        sure = own.copy()
        if "waiting" in batch:
            others, is_known = _worth_of_others(batch, begins, gamma)
            values, sure = np.where(is_known, others, values), own | is_known
        acts[agent], worth[agent], known[agent] = (
            torch.from_numpy(each).to(device) for each in (own, values, sure)
        )
    return JointSteps(acts, worth, known, torch.from_numpy(begins).to(device))


def first_steps(batches: Mapping[str, TensorDict], num_envs: int) -> Array:
    """The first steps of episodes, ``[N, T]``, which begin where the last agent has ended.

    Args:
        batches: ``[agents x N, T]`` of each policy.
        num_envs: N.
    """
    ended = np.concatenate([_array(batch["next", "done"]) for batch in batches.values()])
    done = ended.reshape(-1, num_envs, ended.shape[1])
    begins = np.zeros(done.shape[1:], bool)
    gone = np.zeros(done.shape[:2], bool)
    over = np.ones(done.shape[1], bool)
    for t in range(done.shape[2]):
        begins[:, t] = over
        gone |= done[..., t]
        over = np.asarray(gone.all(0))
        gone &= ~over
    return begins


def _worth_of_others(batch: TensorDict, begins: Array, gamma: float) -> tuple[Array, Array]:
    """What the steps of others were worth ``[N, T]``, and whether that is known."""
    own, waiting = _array(batch["acting"]), _array(batch["waiting"])
    reward, target = _array(batch["next", "reward"]), _array(batch["value_target"])
    done, terminated = _array(batch["next", "done"]), _array(batch["next", "terminated"])
    worth, is_known = np.zeros_like(reward), np.zeros_like(own)
    ahead, sure = np.zeros(len(own), np.float32), np.zeros(len(own), bool)
    for t in reversed(range(own.shape[1])):
        # Nothing comes after an end; of what was cut off it is not known what would have.
        ahead = reward[:, t] + np.float32(gamma) * np.where(done[:, t], np.float32(0), ahead)
        sure = np.where(done[:, t], terminated[:, t], sure)
        worth[:, t], is_known[:, t] = ahead, sure & waiting[:, t]
        ahead, sure = np.where(own[:, t], target[:, t], ahead), sure | own[:, t]
    before, expected = _last(own, _array(batch["state_value"]), begins)
    first_known = is_known & ~before
    if first_known.any():
        expected = np.where(before, expected, worth[first_known].mean())
    return np.where(is_known, worth - expected, np.float32(0)), is_known


def _last(own: Array, value: Array, begins: Array) -> tuple[Array, Array]:
    """Whether there was an own step before in the episode ``[N, T]``, and the last one's value."""
    there, values = np.zeros_like(own), np.zeros_like(value)
    seen, held = np.zeros(len(own), bool), np.zeros(len(own), np.float32)
    for t in range(own.shape[1]):
        seen = seen & ~begins[:, t]
        there[:, t], values[:, t] = seen, held
        seen, held = seen | own[:, t], np.where(own[:, t], value[:, t], held)
    return there, values


def _array(tensor: torch.Tensor) -> Array:
    """``[N, T]`` or ``[N, T, 1]`` as an array ``[N, T]``."""
    return np.asarray(tensor.reshape(tensor.shape[:2]).cpu().numpy())
