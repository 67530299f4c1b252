"""Trainers that are built without a run: nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plugrl.core.errors import UsageError
from plugrl.core.experiment import apply_process_settings, build_trainer
from plugrl.core.run.guards import Guards
from plugrl.core.run.resources import ResourceCache

if TYPE_CHECKING:
    from plugrl.core.experiment import Experiment
    from plugrl.core.run.resources import Item


class NullRun:
    """Stands where a trainer has its run.

    Args:
        what: what is done without one, for messages.
    """

    phase_number = 0

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"{self._what} has no run, so run.{name} is not there")


class UnrecordedRun(NullRun):
    """A run whose samples are kept in memory and of which nothing else is written.

    Close it when the trainer that has it is done.

    Args:
        what: what is done without a run, for messages.
        folder: of the run whose state it is; it is read alone. None: there is none.
    """

    def __init__(self, what: str, folder: Path | None = None) -> None:
        super().__init__(what)
        if folder is not None:
            self.folder = folder
        self.samples: list[dict[str, Any]] = []
        self._resources = ResourceCache()
        #: Bounds the worker processes of an evaluation.
        self.guards = Guards()

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep a record."""
        self.samples.append(dict(record))

    def phase(self, name: str) -> AbstractContextManager[None]:
        """No deadline: whoever waits at the terminal can end it."""
        return nullcontext()

    def label(self, step: int) -> str:
        """How messages name a step."""
        return f"step {step}"

    def keep(self, name: str, make: Callable[[], Item]) -> Item:
        """What ``make`` gave when it was first asked for."""
        return self._resources.get(name, make)

    def close(self) -> None:
        """Close what is kept."""
        self._resources.close()


def dry_run(experiment: Experiment) -> dict[str, float] | None:
    """Try the largest step of the experiment's trainer; None: it has nothing to try.

    Raises:
        RunError: the step does not fit into memory.
    """
    apply_process_settings(experiment)
    run: Any = NullRun("a dry run")
    trainer = build_trainer(experiment.validated, experiment.registry, run)
    return trainer.dry_run()
