"""Environments in which agents take turns: who is asked, and which steps can be learned from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from plugrl.core.tensordict.agents.distributions.distribution import ActionDistribution
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment

#: Maps a policy and the places of rows to their observations.
Seen = Callable[[str, np.ndarray], np.ndarray]
#: Maps a policy and observations to actions, log-probabilities and parameters; the last two may
#: be None where nobody asks for them.
Choose = Callable[[str, np.ndarray], tuple[np.ndarray, "np.ndarray | None", "np.ndarray | None"]]


@dataclass(frozen=True)
class TurnActions:
    """The answers of one policy's agents, in R = agents x environments rows.

    Attributes:
        acting: ``[R]``, who was asked.
        action: ``[R, *action]``, 0 for the others.
        log_prob: ``[R]``, 0 for the others.
    """

    acting: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray


class Turns:
    """Asks only the agents whose next action has an effect.

    Args:
        environment: which says whose turn it is.
        members: the agents of each policy, in the order of their rows.
        distributions: of the actions of each policy.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        members: Mapping[str, Sequence[str]],
        distributions: Mapping[str, ActionDistribution],
    ) -> None:
        self._environment = environment
        self._members = members
        self._distributions = distributions

    def acting(self) -> dict[str, np.ndarray]:
        """Whose turn it is, ``[R]`` for each policy."""
        acting = self._environment.acting()
        assert acting is not None, "an environment takes turns always or never"
        return {
            policy: np.concatenate([acting[agent] for agent in agents])
            for policy, agents in self._members.items()
        }

    def ask(self, seen: Seen, choose: Choose) -> dict[str, TurnActions]:
        """The next actions by policy; the environment is told what they were drawn from."""
        told: dict[str, np.ndarray] = {}
        answers: dict[str, TurnActions] = {}
        for policy, acting in self.acting().items():
            of, number = self._distributions[policy], len(acting)
            action = np.zeros((number, *of.action_shape), of.action_dtype)
            log_prob = np.zeros(number, np.float32)
            params = np.zeros((number, of.parameters), np.float32)
            rows = np.flatnonzero(acting)
            if len(rows):
                chosen, log_probs, drawn_from = choose(policy, seen(policy, rows))
                action[rows] = chosen
                if log_probs is not None:
                    log_prob[rows] = log_probs
                if drawn_from is not None:
                    params[rows] = drawn_from
            answers[policy] = TurnActions(acting, action, log_prob)
            count = self._environment.num_envs
            for i, agent in enumerate(self._members[policy]):
                told[agent] = params[i * count : (i + 1) * count]
        if self._environment.needs_params:
            self._environment.take_params(told)
        return answers


def finished(acting: np.ndarray, done: np.ndarray, acts_next: np.ndarray) -> np.ndarray:
    """Own steps of which it is known what they led to: the next own step, or an end.

    Args:
        acting: ``[T, R]``, own steps.
        done: ``[T, R]``, the episode ended in this step.
        acts_next: ``[R]``, whether the step after the last one is an own step.
    """
    result = np.zeros_like(acting)
    known = acts_next.copy()
    for t in range(len(acting) - 1, -1, -1):
        known |= done[t]
        result[t] = acting[t] & known
        known |= acting[t]
    return result
