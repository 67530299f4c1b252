"""The worker processes of a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from plugrl.core.config.schemas.sections import HealthCheckConfig
from plugrl.core.errors import RunError
from plugrl.core.text.rollout.processes.handle import WorkerHandle, end_all
from plugrl.core.text.rollout.processes.health import HealthCheck

logger = logging.getLogger(__name__)


class WorkerPool:
    """Worker processes, which live as long as a run and serve every phase of it.

    Args:
        max_restarts: how many processes may die and be replaced.
        health: whether and how often they are looked after.
    """

    def __init__(self, max_restarts: int = 10, health: HealthCheckConfig | None = None) -> None:
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
        if found is None:
            found = self._handles[index] = WorkerHandle(f"worker-{index + 1}")
        return found

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
