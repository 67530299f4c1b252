"""What a staged training keeps in its run folder besides checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.run.atomic_writes import disk_error
from plugrl.core.text.staged.journal import RolloutJournal


class RunFiles:
    """Rollouts, journals and intents of jobs of one run, or of one phase of it.

    Args:
        folder: the run folder.
        phase: the number of the phase; 0: the run has none.
    """

    def __init__(self, folder: Path, phase: int = 0) -> None:
        own = folder / f"phase-{phase}" if phase else folder
        self._rollouts = own / "rollouts"
        self._intents = own / "jobs.jsonl"
        #: Where services that train here keep their jobs.
        self.jobs = own / "fine_tuning"

    def _path(self, iteration: int, *, is_test: bool) -> Path:
        # In words, iterations count from 1; the test after the last has the number of the last.
        name = f"test-after-{iteration:04d}" if is_test else f"iteration-{iteration + 1:04d}"
        return self._rollouts / name

    def journal(
        self, iteration: int, origin: Mapping[str, Any], *, is_test: bool
    ) -> RolloutJournal:
        """The finished attempts of an iteration, counted from 0, or of the test before it."""
        path = self._path(iteration, is_test=is_test)
        return RolloutJournal(path.with_name(f"{path.name}.jsonl"), origin)

    def save(self, rollouts: NestedArrayDict, iteration: int, *, is_test: bool) -> Path:
        """Save the rollouts that the stages after sampling read; give the path without ending.

        Raises:
            RunError, UsageError: the file cannot be written.
        """
        path = self._path(iteration, is_test=is_test)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, "save rollouts", path) from error
        rollouts.save(path.with_name(f"{path.name}.npz"))
        return path

    def load(self, iteration: int) -> NestedArrayDict:
        """The rollouts of an iteration, counted from 0.

        Raises:
            UsageError: they are gone.
            RunError: they are damaged.
        """
        path = self._path(iteration, is_test=False)
        return NestedArrayDict.load(path.with_name(f"{path.name}.npz"))

    def intend(self, job: str, iteration: int) -> None:
        """Write down that a job is about to be created; it is on the disk when this returns.

        Raises:
            RunError, UsageError: the file cannot be written.
        """
        line = json.dumps({"job": job, "iteration": iteration + 1}) + "\n"
        try:
            known = self._intents.read_text(encoding="utf-8") if self._intents.exists() else ""
            if line in known.splitlines(keepends=True):
                return
            self._intents.parent.mkdir(parents=True, exist_ok=True)
            with open(self._intents, "a", encoding="utf-8") as file:
                # A killed process may have left half a line.
                file.write("\n" * bool(known and not known.endswith("\n")) + line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(error, "write down a job", self._intents) from error
