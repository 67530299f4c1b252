"""``TorchrlCollector``: TorchRL's own collector steps the environments and asks the policies."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.acting import Actor, GsdeActor, RandomActor
from plugrl.core.tensordict.collect.collector import AfterStep, Collector
from plugrl.core.tensordict.collect.rows import Rows
from plugrl.core.tensordict.environment.vector_environment import AgentStep

#: Where the actions of the networks are kept in TensorDicts, before the environment's encoding.
_CHOSEN = "plugrl"
REFUSAL = (
    "TorchRL's collector collects whole batches, and this trainer learns between steps; write "
    "scenario.collector: arrays"
)
HELD_NOISE = (
    "TorchRL's collector asks policies anew at each step, and noise of use_sde lasts longer; write "
    "scenario.collector: arrays"
)


@runtime_checkable
class TorchrlSource(Protocol):
    """A vector environment whose steps can be read from TensorDicts of TorchRL.

    Attributes:
        torchrl_environment: of TorchRL; its batch has all copies.
    """

    torchrl_environment: Any

    def observe(self, tensordict: TensorDictBase) -> dict[str, np.ndarray]:
        """What each agent sees in a TensorDict of all copies, ``[N, *observation]``."""

    def write(self, tensordict: TensorDictBase, actions: Mapping[str, np.ndarray]) -> None:
        """Put the actions of each agent, ``[N, *action]``, into a TensorDict of all copies."""

    def told(self, tensordict: TensorDictBase) -> dict[str, AgentStep]:
        """What a step gave each agent; steps must be read in their order."""

    def anew(self) -> None:
        """Forget who has ended: all episodes began anew."""


class TorchrlCollector(Collector):
    """Collects through ``torchrl.collectors.Collector``, one TensorDict for each step.

    The policies are asked as modules of TensorDicts (``policy_operator``), so that whatever TorchRL
    adds to collecting applies. It is several times slower than arrays. Arguments are those of
    :class:`~plugrl.core.tensordict.collect.collector.Collector`; the environment must be a
    :class:`TorchrlSource`.
    """

    environment: Any

    def begin(self, seed: int) -> None:
        """Begin all episodes anew.

        Raises:
            ConfigError: the trainer or a policy explores in a way of its own.
        """
        if not all(isinstance(actor, Actor) for actor in self.actors.values()):
            raise ConfigError(REFUSAL)
        if any(isinstance(actor, GsdeActor) for actor in self.actors.values()):
            raise ConfigError(HELD_NOISE)
        self._random = torch.Generator().manual_seed(seed % 2**63).get_state()
        with self._apart():
            if getattr(self, "_collector", None) is None:
                self._collector = self._built()
                self._batches = iter(self._collector)
            self._collector.set_seed(seed % 2**31)
            self._collector.reset()
        self.environment.anew()
        self.statistics.begin()
        self.normalisers.begin()

    def _built(self) -> Any:
        from torchrl.collectors import Collector as Torchrl

        with warnings.catch_warnings():
            # Of parts that TorchRL itself uses, and of transforms for recurrent policies.
            warnings.simplefilter("ignore")
            return Torchrl(
                self.environment.torchrl_environment,
                _Policies(self),
                frames_per_batch=self.steps * self.environment.num_envs,
                total_frames=-1,
                trust_policy=True,
                use_buffers=False,
                track_traj_ids=False,
            )

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Draw from a generator of its own: TorchRL seeds and uses the global one."""
        outer = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outer)

    def _filled(self, after_step: AfterStep | None = None) -> dict[str, Rows]:
        if after_step is not None:
            raise ConfigError(REFUSAL)
        with self._apart():
            batch = next(self._batches)
        environment, count = self.environment, self.environment.num_envs
        filled = {
            policy: Rows(self.steps, len(agents), environment, agents[0])
            for policy, agents in self.members.items()
        }
        # Time is the last dimension of the batch.
        for t, stepped in enumerate(batch.unbind(-1)):
            seen, told = environment.observe(stepped), environment.told(stepped)
            for policy, agents in self.members.items():
                rows = filled[policy]
                action, log_prob = (
                    np.concatenate([_flat(stepped, (_CHOSEN, agent, key)) for agent in agents])
                    for key in ("action", "log_prob")
                )
                rows.acted(t, action, log_prob)
                for i, agent in enumerate(agents):
                    place = slice(i * count, (i + 1) * count)
                    rows.stepped(t, place, told[agent])
                    rows.observation[t, place] = seen[agent]
            self.statistics.add(told)
        for policy, rows in filled.items():
            self.frames[policy] += int(rows.real.sum())
        return filled

    def act(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write what each agent does into a TensorDict of all copies."""
        count = self.environment.num_envs
        seen = self.environment.observe(tensordict)
        actions: dict[str, np.ndarray] = {}
        for policy, agents in self.members.items():
            joined = np.concatenate([seen[agent] for agent in agents])
            action, log_prob = self._chosen(policy, self.normalisers.observation(policy, joined))
            for i, agent in enumerate(agents):
                place = slice(i * count, (i + 1) * count)
                actions[agent] = action[place]
                kept = {"action": action[place], "log_prob": log_prob[place]}
                for key, value in kept.items():
                    tensor = torch.from_numpy(np.ascontiguousarray(value))
                    shape = (*tensordict.batch_size, *value.shape[1:])
                    tensordict.set((_CHOSEN, agent, key), tensor.reshape(shape))
        self.environment.write(tensordict, actions)
        return tensordict

    def _chosen(self, policy: str, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        actor = self.actors[policy]
        if isinstance(actor, RandomActor):
            return actor.act(seen)
        device = next(actor.agent.parameters()).device
        asked = TensorDict({"observation": torch.from_numpy(seen).to(device)}, [len(seen)])
        with torch.no_grad():
            given = actor.agent.policy_operator(asked)
        return given["action"].cpu().numpy(), given["action_log_prob"].cpu().numpy()


class _Policies(TensorDictModuleBase):  # type: ignore[misc]
    """All policies as the one that TorchRL's collector asks."""

    def __init__(self, collector: TorchrlCollector) -> None:
        super().__init__()
        self.in_keys: list[Any] = []
        self.out_keys: list[Any] = []
        self._act = collector.act

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the actions of all agents."""
        return self._act(tensordict)


def _flat(tensordict: TensorDictBase, key: tuple[str, ...]) -> np.ndarray:
    """An entry with one dimension for all copies."""
    tensor: torch.Tensor = tensordict.get(key)
    return tensor.reshape(-1, *tensor.shape[tensordict.ndim :]).numpy()
