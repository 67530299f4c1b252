"""Stand-ins for a run, for trainers that evaluate or try a step and write nothing."""

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
    """Takes the place of a trainer's run; using it is an error.

    Args:
        what: what is done without a run, for messages.
    """

    phase_number = 0

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"{self._what} has no run, so run.{name} is not there")


class UnrecordedRun(NullRun):
    """A run that keeps samples in memory and writes nothing.

    Close it when its trainer is done.

    Args:
        what: what is done without a run, for messages.
        folder: the folder of the run whose state was loaded, for reading; None: a model folder.
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
        """No deadline: whoever waits at the terminal can interrupt it."""
        return nullcontext()

    def label(self, step: int) -> str:
        """The name of a step in messages."""
        return f"step {step}"

    def keep(self, name: str, make: Callable[[], Item]) -> Item:
        """The resource called ``name``, made by ``make`` on first use."""
        return self._resources.get(name, make)

    def close(self) -> None:
        """Close the resources."""
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
