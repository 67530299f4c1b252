"""``rollout_worker.executor: ray``: rollout workers in actors of a Ray cluster."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.run.process.cluster import settings
from plugrl.core.text.rollout.processes.executor import Executor, ExecutorConfig
from plugrl.core.text.rollout.processes.handle import ProcessHandle, WorkerDied, WorkerHandle
from plugrl.plugins.ray import cluster, room
from plugrl.plugins.ray.channel import OUT, Channel
from plugrl.plugins.ray.files import collect_files
from plugrl.plugins.ray.relay import Relay

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.rollout.processes.messages import Setup

logger = logging.getLogger(__name__)
_CPU = "CPU"


@dataclass
class RayExecutorConfig(ExecutorConfig):
    """How many actors run rollout workers, and what each needs."""

    resources: dict[str, float] = described(
        {_CPU: 1.0},
        "what each actor takes of its machine: CPU, GPU, memory in bytes, or a resource of your "
        "own that machines have",
        at_least=0,
        at_most=9e11,
    )


class ActorHandle(WorkerHandle):
    """The driver's end of a worker process that an actor keeps.

    Args:
        name: how messages call it.
        channel: to the process.
        crowded: its actor was started without CPUs of its own.
    """

    def __init__(self, name: str, channel: Channel, *, crowded: bool = False) -> None:
        super().__init__(name, channel.connection)
        self.crowded = crowded
        self._name = name
        self._channel = channel

    @property
    def name(self) -> str:
        """How messages call it, with its machine once that is known."""
        node = self._channel.place.get("node")
        return f"{self._name} on node {node}" if node else self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def place(self) -> dict[str, str]:
        """Where it is; see the base class."""
        place = self._channel.place
        return {"name": self.name, **place} if place else {}

    @property
    def running_attempt(self) -> int:
        """Which attempt's code ran when the actor last said so; -1: none."""
        return self._channel.running

    @property
    def beats(self) -> int:
        """How many signs of life the process has given; see the base class."""
        return self._channel.beats

    @property
    def blameless(self) -> bool:
        """Whether the actor was lost, and not the process alone."""
        return self._channel.lost

    def send(self, *message: Any) -> None:
        """Send a message; see the base class."""
        try:
            self._channel.send(pickle.dumps(message))
        except BrokenPipeError:
            raise WorkerDied from None

    def end(self) -> str:
        """Wait for its end, and say how it came; see the base class."""
        how = self._channel.end()
        return f"was ended because it {self._given_up}" if self._given_up else how

    def kill(self) -> None:
        """End the process at once."""
        self._kill()
        self.end()

    def hang_up(self) -> None:
        """End the process at once: nothing of it is needed any more."""
        self._kill()

    def _kill(self) -> None:
        self._channel.kill()


class RayExecutor(Executor):
    """Worker processes in the actors of a Ray cluster, one in each."""

    Config: ClassVar[type] = RayExecutorConfig

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """More actors than the cluster can hold; a cluster is joined for that, and none started."""
        yield from cls.unplaced(check, "workers")

    @classmethod
    def unplaced(cls, check: Preflight, key: str) -> Iterable[Finding]:
        """What does not fit in the cluster; see the base class."""
        yield from room.findings(check, key)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._files: Any = None

    def prepare(self, setup: Setup) -> None:
        """Join the cluster and see whether the actors fit; see the base class."""
        ray = cluster.connect()
        fault = cluster.unplaceable(self._resources, self.workers)
        if fault is not None:
            raise ConfigError(f"rollout_worker.executor: {fault}; write fewer workers")
        records = [setup.worker, *setup.evaluators.values()]
        cluster.check_nodes(record.distribution for record in records)
        code = [record.file for record in records if record.file is not None]
        code += [sent.file for sent in setup.tokenizers.values() if sent.file is not None]
        self._files = ray.put(collect_files(code, setup.section, settings().files))

    def start(self, name: str) -> WorkerHandle:
        """Start an actor; where the cluster has shrunk, one that shares CPUs with others."""
        if not cluster.nodes():
            raise RunError(
                "the Ray cluster has no machine left; start it again, then resume the run"
            )
        needed = dict(self._resources)
        fault = cluster.unplaceable(needed, self.workers)
        if fault is not None:
            logger.warning("%s shares CPUs with others: %s", name, fault)
            needed[_CPU] = 0.0
        channel = self._channel(partial(ProcessHandle, name), needed)
        return ActorHandle(name, channel, crowded=fault is not None)

    def channel(self, start: Callable[[Mapping[str, str]], Any]) -> Channel:
        """Have a process started in an actor; see the base class."""
        ray = cluster.connect()
        if self._files is None:
            self._files = ray.put(collect_files((), (), settings().files))
        return self._channel(start, self._resources)

    def _channel(
        self, start: Callable[[Mapping[str, str]], Any], resources: Mapping[str, float]
    ) -> Channel:
        # What is sent and what is received do not wait for each other.
        actor = cluster.load_ray().remote(concurrency_groups={OUT: 1}, max_restarts=0)(Relay)
        options = cluster.actor_options(resources)
        made = actor.options(**options).remote(start, self._files, sys.path)
        return Channel(made)

    def is_outdated(self, handle: WorkerHandle) -> bool:
        """Whether an actor that shares CPUs could have its own now."""
        crowded = isinstance(handle, ActorHandle) and handle.crowded
        return crowded and cluster.unplaceable(self._resources, self.workers) is None

    @property
    def _resources(self) -> Mapping[str, float]:
        return {_CPU: 0.0, **self.config.resources}
