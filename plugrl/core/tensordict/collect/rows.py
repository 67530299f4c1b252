"""``Rows``: the steps of a batch as arrays, while they are collected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from plugrl.core.tensordict.environment.turns import finished

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.turns import TurnActions
    from plugrl.core.tensordict.environment.vector_environment import AgentStep, VectorEnvironment


class Rows:
    """The steps of all agents that share a policy: T steps of R = agents x environments rows."""

    def __init__(self, steps: int, agents: int, environment: VectorEnvironment, name: str) -> None:
        spaces, rows = environment.spaces[name], agents * environment.num_envs
        shape = spaces.observation.shape or ()
        self.observation = np.empty((steps + 1, rows, *shape), spaces.observation.dtype)
        self.next = np.empty((steps, rows, *shape), spaces.observation.dtype)
        self.action: np.ndarray | None = None
        self.log_prob = np.zeros((steps, rows), np.float32)
        self.reward = np.empty((steps, rows), np.float32)
        self.terminated = np.empty((steps, rows), bool)
        self.truncated = np.empty((steps, rows), bool)
        self.real = np.ones((steps, rows), bool)
        #: Whether ``next`` is the true last observation where an episode ended.
        self.has_final = np.zeros((steps, rows), bool)
        #: Where agents take turns: whose turn each step was, with one row more for what follows.
        self.acting: np.ndarray | None = None

    def acted(self, t: int, action: np.ndarray, log_prob: np.ndarray | None) -> None:
        """Take in the actions of step ``t`` in all rows."""
        if self.action is None:
            self.action = np.empty((len(self.reward), *action.shape), action.dtype)
        self.action[t] = action
        if log_prob is not None:
            self.log_prob[t] = log_prob

    def stepped(self, t: int, rows: slice, step: AgentStep) -> None:
        """Take in what step ``t`` gave one agent, whose rows these are."""
        self.observation[t + 1, rows] = step.observation
        self.next[t, rows] = step.observation
        self.reward[t, rows] = step.reward
        self.terminated[t, rows] = step.terminated
        self.truncated[t, rows] = step.truncated
        if step.final_observation is not None:
            ended = step.terminated | step.truncated
            self.next[t, rows][ended] = step.final_observation[ended]
            self.has_final[t, rows] = True
        if step.real is not None:
            self.real[t, rows] = step.real

    def took_turns(self, t: int, answers: TurnActions) -> None:
        """Take in the answers of step ``t`` of the agents whose turn it was."""
        if self.acting is None:
            self.acting = np.empty((len(self.reward) + 1, *answers.acting.shape), bool)
        self.acting[t] = answers.acting
        self.acted(t, answers.action, answers.log_prob)

    def learnable(self) -> dict[str, np.ndarray]:
        """Which steps can be learned from and, where agents take turns, whose they were."""
        if self.acting is None:
            return {"valid": self.real}
        acting = self.acting[:-1] & self.real
        known = finished(acting, self.terminated | self.truncated, self.acting[-1])
        return {"valid": known, "acting": acting, "waiting": self.real & ~acting}


def real_steps(filled: Iterable[Rows], num_envs: int, part: slice) -> int:
    """Steps ``part`` over all environments in which any agent took part.

    The others only began an episode: vector environments may use a step for that.
    """
    real = [rows.real[part] for rows in filled]
    if len(real) == 1 and real[0].shape[1] == num_envs:  # one agent: asked after each step
        return int(np.count_nonzero(real[0]))
    each = [steps.reshape(-1, steps.shape[1] // num_envs, num_envs) for steps in real]
    return int(np.concatenate(each, 1).any(1).sum()) if each else 0
