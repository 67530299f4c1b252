"""Whether worker processes are alive: ``runtime_monitor.health_check``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from plugrl.core.config.schemas.sections import HealthCheckConfig
from plugrl.core.text.rollout.processes.handle import WorkerHandle


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
