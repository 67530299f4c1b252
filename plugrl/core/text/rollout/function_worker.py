"""Rollout workers that are made of functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from plugrl.core.plugins.user_code.function_components import component_class
from plugrl.core.text.rollout.task import RolloutTask
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.trajectory import Trajectory


class FunctionWorker(RolloutWorker):
    """A rollout worker made of a function, see :func:`as_worker`."""

    function: ClassVar[Callable[..., Any]]

    def rollout(
        self, task: RolloutTask
    ) -> Trajectory | list[Trajectory] | Awaitable[Trajectory | list[Trajectory]]:
        """Call the function."""
        result: Trajectory | list[Trajectory] = self.function(*self._arguments(task))
        return result

    def _arguments(self, task: RolloutTask) -> tuple[Any, ...]:
        return (task, self)[: type(self)._parameter_count]

    _parameter_count: ClassVar[int] = 1


class AsyncFunctionWorker(FunctionWorker):
    """A rollout worker made of an ``async`` function, see :func:`as_worker`."""

    async def rollout(self, task: RolloutTask) -> Trajectory | list[Trajectory]:
        """Call the function and await it."""
        result: Trajectory | list[Trajectory] = await self.function(*self._arguments(task))
        return result


def as_worker(value: Any) -> Any:
    """The worker class of a function ``f(task)`` or ``f(task, worker)``; others come back as is.

    The function may be plain or ``async`` and gives what :meth:`RolloutWorker.rollout` gives.
    ``worker`` has ``config``, ``judge`` and ``judged``. One function always gives one class.

    Raises:
        TypeError: the function has other parameters.
    """
    return component_class(value, FunctionWorker, AsyncFunctionWorker, ("task", "worker"))
