"""Trainers that are built without a run: nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from plugrl.core.errors import UsageError
from plugrl.core.experiment import build_trainer, enter

if TYPE_CHECKING:
    from plugrl.core.experiment import Experiment


class NoRun:
    """Stands where a trainer has its run.

    Args:
        what: what is done without one, for messages.
    """

    phase_number = 0

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"{self._what} has no run, so run.{name} is not there")


def dry_run(experiment: Experiment) -> dict[str, float] | None:
    """Try the largest step of the experiment's trainer; None: it has nothing to try.

    Raises:
        RunError: the step does not fit into memory.
    """
    enter(experiment)
    run: Any = NoRun("a dry run")
    trainer = build_trainer(experiment.validated, experiment.registry, run)
    return trainer.dry_run()
