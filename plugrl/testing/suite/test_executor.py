"""The contract of executors.

Run it with ``--plugrl-executor NAME``, or subclass :class:`ExecutorContract` with an attribute
``plugrl_executor``. An executor gives as ``conformance``: ``config``, its section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from plugrl.core.config.check import configure
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.rollout.processes.executor import Executor
from plugrl.core.text.rollout.processes.handle import WorkerDied, WorkerHandle
from plugrl.core.text.rollout.processes.messages import Setup, worker_setup
from plugrl.testing.contract import ComponentContract


class ExecutorContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_executor``."""

    kind = "executor"

    @pytest.fixture
    def setup(self) -> Setup:
        """A worker that has an evaluator, as processes are told of it."""
        registry = default_registry()
        record = registry.resolve("rollout_worker", "single_turn")
        section = configure(registry.load(record), {"evaluator": "exact_match"})
        return worker_setup(Factory(registry, {"rollout_worker": record}), section, {})

    @pytest.fixture
    def executor(self, make: Callable[[], Executor], setup: Setup) -> Iterator[Executor]:
        """An executor that has looked at its places."""
        made = make()
        made.prepare(setup)
        yield made
        made.close()

    @pytest.fixture
    def handle(self, executor: Executor) -> Iterator[WorkerHandle]:
        """A process that has begun to start."""
        started = executor.start("worker-1")
        yield started
        started.kill()

    def test_it_says_how_many_processes_it_has(self, executor: Executor) -> None:
        assert executor.workers >= 1

    def test_a_process_builds_worker_and_evaluator(
        self, handle: WorkerHandle, setup: Setup
    ) -> None:
        handle.prepare(setup)
        assert handle.receive() == ("ready",)
        assert handle.name.startswith("worker-1"), "messages call it by the name that it was given"
        assert handle.running_attempt == -1

    def test_a_process_that_is_given_up_is_gone_and_says_why(
        self, handle: WorkerHandle, setup: Setup
    ) -> None:
        handle.prepare(setup)
        handle.receive()
        handle.give_up("was not needed")
        with pytest.raises(WorkerDied):
            handle.receive()
        assert handle.end() == "was ended because it was not needed"

    def test_processes_do_not_hear_each_other(
        self, executor: Executor, handle: WorkerHandle, setup: Setup
    ) -> None:
        other = executor.start("worker-2")
        other.kill()
        handle.prepare(setup)
        assert handle.receive() == ("ready",)
