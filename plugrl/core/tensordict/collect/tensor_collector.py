"""``TensorCollector``: steps that never leave the device where the networks are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from plugrl.core.errors import ConfigError
from plugrl.core.run.guards import MAX_PLAUSIBLE_REWARD
from plugrl.core.tensordict.agents.acting import Actor, GsdeActor
from plugrl.core.tensordict.collect.collector import AfterStep, Collector
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.cuda_graph import GraphedFunction
from plugrl.core.tensordict.environment.tensor_environment import TensorEnvironment
from plugrl.core.tensordict.environment.vector_environment import AGENT


class TensorCollector(Collector):
    """Steps a :class:`TensorEnvironment` with one policy, as operations on one device.

    On a GPU all T steps are one CUDA graph. The tensors of a batch are those of the batch before,
    filled anew. Arguments are those of :class:`Collector`.
    """

    environment: TensorEnvironment

    def __init__(
        self,
        environment: TensorEnvironment,
        policy_of: Mapping[str, str],
        actors: Mapping[str, Actor],
        *,
        steps: int,
        normalisers: Normalisers,
    ) -> None:
        super().__init__(environment, policy_of, actors, steps=steps, normalisers=normalisers)
        ((self._policy, self._actor),) = actors.items()
        self.statistics: _Episodes = _Episodes(steps, environment)  # type: ignore[assignment]
        self._noise = torch.Generator(environment.device)
        self._seen: torch.Tensor | None = None
        self._filled_steps: dict[str, torch.Tensor] | None = None
        self._steps = GraphedFunction(
            "collecting", self._step, [self._noise, environment.generator]
        )

    @staticmethod
    def takes(environment: Any, actors: Mapping[str, Any], normalisers: Normalisers) -> bool:
        """Whether steps can stay on the device: one network acts, and nothing counts arrays."""
        return (
            isinstance(environment, TensorEnvironment)
            and len(actors) == 1
            and all(
                isinstance(actor, Actor) and acts_by_network(actor) for actor in actors.values()
            )
            and not normalisers.used
        )

    def begin(self, seed: int) -> None:
        """Begin all episodes anew."""
        self._see(self.environment.reset_tensors(seed))
        self.statistics.begin()

    def _see(self, observation: torch.Tensor) -> None:
        """Keep what the next actions are chosen from, always in the same memory."""
        if self._seen is None:
            self._seen = observation.clone()
        else:
            self._seen.copy_(observation)

    def collect(self, after_step: AfterStep | None = None) -> dict[str, TensorDict]:
        """The next T steps, with batch size ``[R, T]``; keys are those of :class:`Collector`.

        Raises:
            ConfigError: the trainer learns between steps.
        """
        if after_step is not None:
            raise ConfigError(
                "steps that stay on a device are collected in whole batches, and this trainer "
                "learns between steps"
            )
        self._noise.manual_seed(int(self._actor.rng.integers(2**62)))
        with torch.no_grad():
            self._steps()
        filled = self._filled_steps
        assert filled is not None
        self.frames[self._policy] += self.batch_steps
        batch = {name: steps.transpose(0, 1) for name, steps in filled.items()}
        size = [self.environment.num_envs, self.steps]
        following = {
            "observation": batch["next_observation"],
            "reward": batch["reward"].unsqueeze(-1),
            "done": batch["done"].unsqueeze(-1),
            "terminated": batch["terminated"].unsqueeze(-1),
        }
        own = ("observation", "action", "action_log_prob", "valid")
        return {
            self._policy: TensorDict(
                {**{name: batch[name] for name in own}, "next": TensorDict(following, size)}, size
            )
        }

    def _step(self) -> None:
        """All T steps."""
        environment, agent = self.environment, self._actor.agent
        seen = self._seen
        assert seen is not None
        rows: list[dict[str, torch.Tensor]] = []
        for t in range(self.steps):
            observation = seen.clone()
            action, log_prob = agent.distribution.rsample(agent.policy(observation), self._noise)
            stepped = environment.step_tensors(action)
            done = stepped.terminated | stepped.truncated
            self.statistics.add(t, stepped.reward, done)
            rows.append(
                {
                    "observation": observation,
                    "action": action,
                    "action_log_prob": log_prob,
                    "next_observation": stepped.final_observation,
                    "reward": stepped.reward,
                    "terminated": stepped.terminated,
                    "done": done,
                    "valid": torch.ones_like(done),
                }
            )
            seen.copy_(stepped.observation)
        filled = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        if self._filled_steps is None:
            self._filled_steps = filled
        else:
            for name, steps in filled.items():
                self._filled_steps[name].copy_(steps)

    def absurd_reward(self) -> str | None:
        """See the base class."""
        if self._filled_steps is None:
            return None
        reward = self._filled_steps["reward"]
        for t, row in (~(reward.abs() <= MAX_PLAUSIBLE_REWARD)).nonzero()[:1].tolist():
            return (
                f"agent {AGENT} got {float(reward[t, row]):g} in environment {row} at step {t + 1} "
                f"of {self.steps}"
            )
        return None

    @property
    def batch_steps(self) -> int:
        """See the base class: episodes begin anew without a step for that."""
        return 0 if self._filled_steps is None else self.steps * self.environment.num_envs

    @property
    def reset_steps(self) -> int:
        """None: see :attr:`batch_steps`."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """See the base class."""
        state = super().state_dict()
        return {**state, "observation": {} if self._seen is None else {self._policy: self._seen}}

    def load_state_dict(self, state: Mapping[str, Any], seed: int) -> bool:
        """See the base class."""
        seen = state["observation"][self._policy]
        went_on = super().load_state_dict({**state, "observation": {}}, seed)
        self._see(seen.to(self.environment.device))
        return went_on


def acts_by_network(actor: Actor) -> bool:
    """Whether networks alone say how actions are drawn, and no chance, script or held noise."""
    agent = actor.agent
    return agent.script is None and not agent.is_random and not isinstance(actor, GsdeActor)


class _Episodes:
    """Returns and lengths of episodes, added up on the device.

    Args:
        steps: T, the steps between two looks.
        environment: whose copies they are.
    """

    def __init__(self, steps: int, environment: TensorEnvironment) -> None:
        count, device = environment.num_envs, environment.device
        self._return = torch.zeros(count, dtype=torch.float64, device=device)
        self._length = torch.zeros(count, dtype=torch.int64, device=device)
        self._returns = torch.zeros(steps, count, dtype=torch.float64, device=device)
        self._lengths = torch.zeros(steps, count, dtype=torch.int64, device=device)
        self._ended = torch.zeros(steps, count, dtype=torch.bool, device=device)

    def begin(self) -> None:
        """Forget what is open and what has ended."""
        for tensor in (self._return, self._length, self._ended):
            tensor.zero_()

    def add(self, t: int, reward: torch.Tensor, done: torch.Tensor) -> None:
        """Add step ``t`` of a batch."""
        self._return += reward
        self._length += 1
        self._returns[t].copy_(self._return)
        self._lengths[t].copy_(self._length)
        self._ended[t].copy_(done)
        self._return.masked_fill_(done, 0)
        self._length.masked_fill_(done, 0)

    def take(self) -> dict[str, list[tuple[float, int]]]:
        """Return and length of the episodes that ended in the latest batch."""
        ended = self._ended
        returns, lengths = self._returns[ended].tolist(), self._lengths[ended].tolist()
        ended.zero_()
        return {AGENT: list(zip(returns, lengths, strict=True))}

    def state_dict(self) -> dict[str, Any]:
        """What is open; what has ended is in the metrics already."""
        return {AGENT: {"return": self._return.clone(), "length": self._length.clone()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._return.copy_(state[AGENT]["return"])
        self._length.copy_(state[AGENT]["length"])
        self._ended.zero_()
