"""``Collector``: environments stepped as arrays, and one TensorDict per policy and batch.

A TensorDict per step costs many times what the step of a small environment does, so that arrays
are filled here and wrapped once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from plugrl.core.run.guards import MAX_PLAUSIBLE_REWARD
from plugrl.core.tensordict.agents.acting import Actor
from plugrl.core.tensordict.collect.episodes import EpisodeStatistics
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.collect.rows import Rows, real_steps
from plugrl.core.tensordict.environment.contract import (
    check_acting,
    check_ends,
    check_masks,
    check_reset,
    check_step,
)
from plugrl.core.tensordict.environment.turns import Turns

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment


#: Called after each step: its number in the batch, and what was collected so far by policy.
AfterStep = Callable[[int, Mapping[str, Rows]], None]


class Collector:
    """Steps environments with the current policies.

    Args:
        environment: the environments; they are reset by :meth:`begin`.
        policy_of: the policy of each agent.
        actors: what chooses the actions of each policy.
        steps: T, the steps of one batch in each environment.
        normalisers: of observations and rewards, by policy.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy_of: Mapping[str, str],
        actors: Mapping[str, Actor],
        *,
        steps: int,
        normalisers: Normalisers,
    ) -> None:
        self.environment = environment
        self.normalisers = normalisers
        self.actors = dict(actors)
        self.steps = steps
        self.statistics = EpisodeStatistics(list(environment.spaces), environment.num_envs)
        #: The agents of each policy, in the order of their rows.
        self.members: dict[str, list[str]] = {name: [] for name in actors}
        for agent, policy in policy_of.items():
            self.members[policy].append(agent)
        #: Real steps of each policy's agents so far.
        self.frames: dict[str, int] = dict.fromkeys(actors, 0)
        self._observation: dict[str, np.ndarray] = {}
        #: What was collected last, and how many steps of it are there by now.
        self._latest: tuple[Mapping[str, Rows], int] = {}, 0

    def begin(self, seed: int) -> None:
        """Begin all episodes anew."""
        observations = self.environment.reset(seed)
        check_reset(self.environment, observations)
        self._observation = {
            policy: self._joined([observations[agent] for agent in agents])
            for policy, agents in self.members.items()
        }
        self.statistics.begin()
        self.normalisers.begin()

    def warm_up(self, frames: int, seed: int) -> None:
        """Take the first statistics of the normalisers from steps that nothing learns from.

        There are at least ``frames`` real ones over all environments, in whole batches.
        """
        if not self.normalisers.used or frames == 0:
            return
        self.begin(seed)
        taken = 0
        while taken < frames:
            filled = self._filled()
            self._observe(filled)
            # An episode of one step and the beginning of the next take two: real ones come.
            taken += self._real(filled, self.steps)
        self.frames = dict.fromkeys(self.frames, 0)

    def collect(self, after_step: AfterStep | None = None) -> dict[str, TensorDict]:
        """The next T steps, by policy, with batch size ``[R, T]``.

        Args:
            after_step: called after each step with its number in the batch and what is collected
                so far, as the environments gave it, by policy.

        Keys: ``observation``, ``action``, ``action_log_prob`` ``[R, T]``, ``valid`` ``[R, T]``
        (false: nothing may learn from the step), and under ``next``: ``observation`` (the true
        one, also where an episode ended), ``reward``, ``done`` and ``terminated``
        ``[R, T, 1]``.

        Where agents take turns, ``acting`` ``[R, T]`` are steps in which the agent was asked and
        ``waiting`` those in which it took part and was not. Of the former the last one is not
        valid if it is not known what it led to.
        """
        filled = self._filled(after_step)
        self._latest = filled, self.steps
        batches = {name: self._wrapped(name, rows) for name, rows in filled.items()}
        self._observe(filled)
        return batches

    def _filled(self, after_step: AfterStep | None = None) -> dict[str, Rows]:
        environment, steps, count = self.environment, self.steps, self.environment.num_envs
        filled = {
            policy: Rows(steps, len(agents), environment, agents[0])
            for policy, agents in self.members.items()
        }
        places = [
            (agent, filled[policy], slice(i * count, (i + 1) * count))
            for policy, agents in self.members.items()
            for i, agent in enumerate(agents)
        ]
        for policy, rows in filled.items():
            rows.observation[0] = self._observation[policy]
            actor = self.actors[policy]
            # An explorer's rollouts are the steps between two updates, as its trainer says.
            if isinstance(actor, Actor):
                actor.begin_rollout()
        actions: dict[str, np.ndarray] = {}
        turns = self._turns()
        for t in range(steps):
            if turns is not None:
                self._ask(turns, t, filled, actions)
            for policy, agents in self.members.items() if turns is None else ():
                rows = filled[policy]
                seen = self.normalisers.observation(policy, rows.observation[t])
                action, log_prob = self.actors[policy].act(seen)
                rows.acted(t, action, log_prob)
                for i, agent in enumerate(agents):
                    actions[agent] = action[i * count : (i + 1) * count]
            stepped = environment.step(actions)
            if t == 0:  # what is right once is right in each step, and looking takes time
                check_step(environment, stepped)
            for agent, rows, place in places:
                rows.stepped(t, place, stepped[agent])
            self.statistics.add(stepped)
            if after_step is not None:
                self._latest = filled, t + 1
                after_step(t, filled)
        follows = None if turns is None else turns.acting()
        for policy, rows in filled.items():
            if follows is not None and rows.acting is not None:
                rows.acting[steps] = follows[policy]
            check_ends(environment, rows)
            check_masks(environment, self.members[policy][0], rows)
            self._observation[policy] = rows.observation[steps].copy()
            self.frames[policy] += int(rows.real.sum())
        return filled

    def _real(self, filled: Mapping[str, Rows], stop: int) -> int:
        return real_steps(filled.values(), self.environment.num_envs, slice(stop))

    def absurd_reward(self) -> str | None:
        """Where the first reward of the latest steps is that no loss can bear; None: nowhere."""
        filled, stop = self._latest
        count = self.environment.num_envs
        for policy, rows in filled.items():
            with np.errstate(invalid="ignore"):
                absurd = ~(np.abs(rows.reward[:stop]) <= MAX_PLAUSIBLE_REWARD) & rows.real[:stop]
            for t, row in np.argwhere(absurd)[:1]:
                agent = self.members[policy][row // count]
                return (
                    f"agent {agent} got {rows.reward[t, row]:g} in environment {row % count} at "
                    f"step {t + 1} of {self.steps}"
                )
        return None

    def _turns(self) -> Turns | None:
        """What asks the agents where they take turns; None: all always act."""
        acting = self.environment.acting()
        if acting is None:
            return None
        check_acting(self.environment, acting)
        distributions = {name: actor.agent.distribution for name, actor in self.actors.items()}
        return Turns(self.environment, self.members, distributions)

    def _ask(
        self, turns: Turns, t: int, filled: Mapping[str, Rows], actions: dict[str, np.ndarray]
    ) -> None:
        """Take in the actions of step ``t`` of those whose turn it is."""

        def seen(policy: str, rows: np.ndarray) -> np.ndarray:
            return self.normalisers.observation(policy, filled[policy].observation[t][rows])

        def choose(policy: str, observation: np.ndarray) -> Any:
            return self.actors[policy].act_with_params(observation)

        count = self.environment.num_envs
        for policy, answers in turns.ask(seen, choose).items():
            filled[policy].took_turns(t, answers)
            for i, agent in enumerate(self.members[policy]):
                actions[agent] = answers.action[i * count : (i + 1) * count]

    def _observe(self, filled: Mapping[str, Rows]) -> None:
        for policy, rows in filled.items():
            self.normalisers.update(
                policy,
                rows.observation[:-1],
                rows.reward,
                rows.terminated | rows.truncated,
                rows.real,
            )

    def _wrapped(self, policy: str, rows: Rows) -> TensorDict:
        normalisers = self.normalisers
        done = rows.terminated | rows.truncated
        following = {
            "observation": _batch(normalisers.observation(policy, rows.next)),
            "reward": _batch(normalisers.reward(policy, rows.reward)).unsqueeze(-1),
            "done": _batch(done).unsqueeze(-1),
            "terminated": _batch(rows.terminated).unsqueeze(-1),
        }
        size = [done.shape[1], done.shape[0]]
        return TensorDict(
            {
                "observation": _batch(normalisers.observation(policy, rows.observation[:-1])),
                "action": _batch(rows.action),
                "action_log_prob": _batch(rows.log_prob),
                **{name: _batch(steps) for name, steps in rows.learnable().items()},
                "next": TensorDict(following, batch_size=size),
            },
            batch_size=size,
        )

    @staticmethod
    def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
        # A copy of a single part too: environments may change their arrays in place.
        return np.concatenate(parts)

    @property
    def total_frames(self) -> int:
        """Real steps of the agents that took most of them."""
        return max(self.frames.values(), default=0)

    @property
    def batch_steps(self) -> int:
        """Real steps of the latest batch over all environments."""
        return self._real(*self._latest)

    @property
    def reset_steps(self) -> int:
        """Steps of the latest batch, over all environments, that only began an episode."""
        return self._latest[1] * self.environment.num_envs - self.batch_steps

    def state_dict(self) -> dict[str, Any]:
        """Environments, where they allow it, generators, normalisers and open episodes."""
        return {
            "environment": self.environment.state_dict(),
            "observation": {k: torch.from_numpy(v) for k, v in self._observation.items()},
            "actors": {name: actor.state_dict() for name, actor in self.actors.items()},
            "normalisers": self.normalisers.state_dict(),
            "statistics": self.statistics.state_dict(),
            "frames": dict(self.frames),
        }

    def load_state_dict(self, state: Mapping[str, Any], seed: int) -> bool:
        """Take back what :meth:`state_dict` gave.

        Returns:
            Whether episodes go on where they were; else they begin anew, from ``seed``.
        """
        for name, actor in self.actors.items():
            actor.load_state_dict(state["actors"][name])
        self.normalisers.load_state_dict(state["normalisers"])
        self.frames = dict(state["frames"])
        if state["environment"] is None:
            self.begin(seed)
            return False
        self.environment.load_state_dict(state["environment"])
        self._observation = {k: v.numpy().copy() for k, v in state["observation"].items()}
        self.statistics.load_state_dict(state["statistics"])
        return True


def _batch(array: np.ndarray | None) -> torch.Tensor:
    """An array ``[T, R, ...]`` as a tensor ``[R, T, ...]`` that shares its memory."""
    assert array is not None, "no step was taken"
    return torch.from_numpy(np.ascontiguousarray(array)).transpose(0, 1)
