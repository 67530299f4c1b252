"""The worker processes of a run, and whether they are alive (``runtime_monitor.health_check``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from plugrl.core.config.schemas.sections import HealthCheckConfig
from plugrl.core.errors import RunError
from plugrl.core.text.rollout.processes.executor import Executor, LocalExecutor
from plugrl.core.text.rollout.processes.handle import WorkerHandle, end_all


class HealthCheck:
    """Looks after worker processes in a thread, and ends those that give no sign of life.

    One that was ended is replaced like any that dies: its attempts go to another, and it counts.

    Args:
        config: how often, and how long a sign is waited for.
        processes: those that there are now.
    """

    def __init__(
        self, config: HealthCheckConfig, processes: Callable[[], Sequence[WorkerHandle | None]]
    ) -> None:
        self._config = config
        self._processes = processes
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plugrl-health", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        seconds = self._config.timeout
        while not self._closed.wait(self._config.check_interval):
            # One that has only begun imports its code, which phases have deadlines for.
            before = [(p, p.beats) for p in self._processes() if p is not None and p.beats]
            if self._closed.wait(seconds):
                return
            for process, beats in before:
                if process.beats == beats:
                    process.give_up(f"gave no sign of life for {seconds:g} seconds")

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()


logger = logging.getLogger(__name__)


class WorkerPool:
    """Worker processes, which live as long as a run and serve every phase of it.

    Args:
        max_restarts: how many processes may die and be replaced.
        health: whether and how often they are looked after.
        executor: where they live; None: on this machine.
    """

    def __init__(
        self,
        max_restarts: int = 10,
        health: HealthCheckConfig | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._executor = executor or LocalExecutor()
        self._max_restarts = max_restarts
        self._handles: list[WorkerHandle | None] = []
        self._deaths = 0
        self._restarts = 0
        self._overdue = 0
        self._health: HealthCheck | None = None
        if health is not None and health.enabled:
            self._health = HealthCheck(health, lambda: list(self._handles))

    def grow(self, count: int) -> None:
        """Start processes until there are ``count``; it does not wait for them."""
        for index in range(count):
            self.handle(index)

    def handle(self, index: int) -> WorkerHandle:
        """A process by its index; it is started when there is none."""
        self._handles += [None] * (index + 1 - len(self._handles))
        found = self._handles[index]
        if found is not None and self._executor.is_outdated(found):
            found.kill()
            found = None
        if found is None:
            found = self._handles[index] = self._executor.start(f"worker-{index + 1}")
        return found

    def places(self) -> dict[int, dict[str, str]]:
        """Where the processes live, by their index; those of this machine are left out."""
        found = {i: handle.place for i, handle in enumerate(self._handles) if handle is not None}
        return {index: place for index, place in found.items() if place}

    def replace(self, index: int, reason: str) -> WorkerHandle:
        """Start a process in the place of one that has ended; ``reason`` says who, how and when.

        Raises:
            RunError: too many have died.
        """
        self._restarts += 1
        self._deaths += 1
        if self._deaths > self._max_restarts:
            raise RunError(
                f"{reason}; {self._deaths} worker processes have died, more than "
                f"runtime_monitor.max_worker_restarts={self._max_restarts} allows"
            )
        return self._replace(index, reason)

    def replace_overdue(self, index: int, reason: str) -> WorkerHandle:
        """Start a process in the place of one whose code passed its time limit.

        That is no death: each costs its attempt, so that they need no bound of their own.
        """
        self._overdue += 1
        return self._replace(index, reason)

    def _replace(self, index: int, reason: str) -> WorkerHandle:
        self._handles[index] = None
        logger.warning("%s; another process takes over", reason)
        return self.handle(index)

    def take_restarts(self) -> int:
        """How many processes died and were replaced since the last call."""
        new, self._restarts = self._restarts, 0
        return new

    def take_overdue(self) -> int:
        """How many were replaced since the last call because code passed its time limit."""
        new, self._overdue = self._overdue, 0
        return new

    def discard(self, indices: Sequence[int]) -> None:
        """End processes whose results are no longer needed."""
        for index in indices:
            self.handle(index).kill()
            self._handles[index] = None

    def close(self) -> None:
        """End all processes."""
        if self._health is not None:
            self._health.close()
        handles, self._handles = self._handles, []
        end_all([handle for handle in handles if handle is not None])
        self._executor.close()
