"""``rollout_worker.executor: ray``: rollout workers in actors of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.run.process.cluster import settings
from plugrl.core.text.rollout.processes.executor import Executor, ExecutorConfig
from plugrl.core.text.rollout.processes.handle import WorkerDied, WorkerHandle
from plugrl.core.text.rollout.processes.process import IDLE
from plugrl.plugins.ray import cluster
from plugrl.plugins.ray.errors import reason
from plugrl.plugins.ray.files import collect_files
from plugrl.plugins.ray.relay import WorkerRelay

if TYPE_CHECKING:
    from plugrl.core.text.rollout.processes.messages import Setup

logger = logging.getLogger(__name__)
#: Seconds after which an actor answers although its process has said nothing.
_PULSE = 1.0
#: Seconds without any answer after which an actor is given up: its machine may have stopped.
_SILENCE = 60.0
#: The thread of an actor that waits for what its process says.
_OUT = "out"
_CPU = "CPU"
#: Resources that have an argument of their own in Ray.
_ARGUMENTS = {_CPU: "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass
class RayExecutorConfig(ExecutorConfig):
    """How many actors run rollout workers, and what each needs."""

    resources: dict[str, float] = described(
        {_CPU: 1.0},
        "what each actor takes of its machine: CPU, GPU, memory in bytes, or a resource of your "
        "own that machines have",
        at_least=0,
        at_most=1e15,
    )


class ActorHandle(WorkerHandle):
    """The driver's end of a worker process that an actor keeps.

    What the actor passes on is written to a local connection by a thread, so that actors are waited
    for like processes of this machine.

    Args:
        name: how messages call it.
        actor: the actor, which may not have started yet.
        crowded: it was started without CPUs of its own.
    """

    def __init__(self, name: str, actor: Any, *, crowded: bool = False) -> None:
        here, there = socket.socketpair()
        super().__init__(name, Connection(here.detach()))
        self.crowded = crowded
        self.place: dict[str, str] = {}
        self._ray = cluster.load_ray()
        self._actor = actor
        self._beats, self._running = 0, IDLE
        self._how = ""
        self._lost = False
        self._thread = threading.Thread(
            target=self._pass_on, args=(Connection(there.detach()),), daemon=True
        )
        self._thread.start()

    @property
    def running_attempt(self) -> int:
        """Which attempt's code ran when the actor last said so; -1: none."""
        return self._running

    @property
    def beats(self) -> int:
        """How many signs of life the process has given; see the base class."""
        return self._beats

    @property
    def blameless(self) -> bool:
        """Whether the actor was lost, and not the process alone."""
        return self._lost

    def send(self, *message: Any) -> None:
        """Send a message; see the base class."""
        if not self._thread.is_alive():
            raise WorkerDied
        self._actor.send.remote(pickle.dumps(message))

    def end(self) -> str:
        """Wait for its end, and say how it came; see the base class."""
        self._thread.join(2.0)
        self._kill()
        self._thread.join()
        super().hang_up()
        if self._given_up:
            return f"was ended because it {self._given_up}"
        return self._how or "was ended by this run"

    def kill(self) -> None:
        """End the process at once."""
        self._kill()
        self.end()

    def hang_up(self) -> None:
        """End the process at once: nothing of it is needed any more."""
        self._kill()
        super().hang_up()

    def _kill(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def _pass_on(self, there: Connection) -> None:
        """Write what the actor passes on to the local connection, until its end."""
        get = self._ray.get
        receive = self._actor.receive.options(concurrency_group=_OUT)
        try:
            self.place = get(self._actor.place.remote(), timeout=settings().start_timeout)
            self.name = f"{self.name} on node {self.place['node']}"
            while not self._how:
                answer = get(receive.remote(_PULSE), timeout=_PULSE + _SILENCE)
                messages, self._beats, self._running, self._how = answer
                for message in messages:
                    there.send_bytes(message)
        except self._ray.exceptions.RayError as error:
            self._how, self._beats = reason(error), 0
            # Ray ends actors for want of memory, and knows nothing of the process that took it.
            self._lost = not isinstance(error, self._ray.exceptions.OutOfMemoryError)
        except OSError:  # the run has closed its end
            return
        finally:
            there.close()


class RayExecutor(Executor):
    """Worker processes in the actors of a Ray cluster, one in each."""

    Config: ClassVar[type] = RayExecutorConfig

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._files: Any = None
        self._class: Any = None

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
        # What is sent and what is received do not wait for each other.
        self._class = ray.remote(concurrency_groups={_OUT: 1}, max_restarts=0)(WorkerRelay)

    def start(self, name: str) -> WorkerHandle:
        """Start an actor; where the cluster has shrunk, one that shares CPUs with others."""
        needed = dict(self._resources)
        fault = cluster.unplaceable(needed, self.workers)
        if fault is not None:
            logger.warning("%s shares CPUs with others: %s", name, fault)
            needed[_CPU] = 0.0
        options = {_ARGUMENTS[key]: needed.pop(key) for key in [*needed] if key in _ARGUMENTS}
        actor = self._class.options(resources=needed, **options).remote(name, self._files)
        return ActorHandle(name, actor, crowded=fault is not None)

    def is_outdated(self, handle: WorkerHandle) -> bool:
        """Whether an actor that shares CPUs could have its own now."""
        crowded = isinstance(handle, ActorHandle) and handle.crowded
        return crowded and cluster.unplaceable(self._resources, self.workers) is None

    def describe(self, handles: Iterable[WorkerHandle | None]) -> list[dict[str, str]]:
        """Machine, process and name of each actor."""
        return [
            {"name": each.name, **each.place} for each in handles if isinstance(each, ActorHandle)
        ]

    @property
    def _resources(self) -> Mapping[str, float]:
        return {_CPU: 0.0, **self.config.resources}
