"""Loops of a trainer that say beforehand how long they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from plugrl.core.run.progress import Bar
    from plugrl.core.trainer import Trainer

Result = TypeVar("Result")

_COUNT = "plugrl_num_iterations"


class IterationContext:
    """What a loop tells of its progress.

    Args:
        trainer: whose run shows the bar.
        num_iterations: how many iterations the loop has in all.
    """

    def __init__(self, trainer: Trainer, num_iterations: int) -> None:
        self._trainer = trainer
        self.num_iterations = num_iterations
        self._description = "Running"
        self._done = 0
        self._bar: Bar | None = None

    def set_description(self, description: str) -> None:
        """Name the bar; before the first :meth:`step`."""
        self._description = description

    def step(self, completed: int | None = None, **numbers: float | int | str) -> None:
        """One iteration is done; after a resume ``completed`` says how many are."""
        self._done = self._done + 1 if completed is None else completed
        if self._bar is None:
            self._bar = self._trainer.run.progress(self._description, self.num_iterations)
        self._bar.update(self._done, **numbers)

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.close()


def attach_progress_bar(
    count: Callable[[Any], int],
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a method of a trainer a progress bar, as the keyword ``iteration_context``.

    Args:
        count: called with the trainer; how many iterations the method will run.
    """

    def attach(loop: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(loop)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Result:
            with closing(IterationContext(self, count(self))) as context:
                return loop(self, *args, iteration_context=context, **kwargs)

        setattr(wrapped, _COUNT, count)
        return wrapped

    return attach


def total_num_iterations(trainer: Any) -> int:
    """The iterations of all loops of a trainer that have a progress bar."""
    methods = (member for _, member in inspect.getmembers(type(trainer), inspect.isfunction))
    return sum(getattr(m, _COUNT)(trainer) for m in methods if hasattr(m, _COUNT))
