"""``JobFolder``: a fine-tuning job on disk, which survives the process that trains it.

``job.json`` and ``examples.jsonl`` appear together when the job is made; ``progress/`` holds the
newest state of its training, ``model/`` what came of it, and ``ended.json`` why nothing did.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.core.errors import RunError, UsageError
from plugrl.core.run.atomic_writes import (
    disk_error,
    remove_unfinished,
    sync_folder,
    temporary_name,
    write_json,
)
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.text.jobs import examples as job_examples
from plugrl.core.text.jobs.fine_tuning import Examples

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_ABOUT, _EXAMPLES, _ENDED, _MODEL = "job.json", "examples.jsonl", "ended.json", "model"


class JobFolder:
    """One job below the folder of all jobs of a model.

    Raises:
        UsageError: the name cannot be that of a folder.
    """

    def __init__(self, jobs: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"a job cannot be called {name!r}; letters, digits and ._- are expected, at most "
                "200"
            )
        self.name = name
        self.path = jobs / name

    @property
    def exists(self) -> bool:
        """Whether the job was made."""
        return (self.path / _ABOUT).is_file()

    def make(self, examples: Examples, about: Mapping[str, Any]) -> None:
        """Make the job, whole or not at all.

        Raises:
            RunError: the disk is full.
        """
        temporary = temporary_name(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.path.parent)
            temporary.mkdir()
            lines = job_examples.to_lines(examples)
            (temporary / _EXAMPLES).write_text(lines, encoding="utf-8")
            write_json(temporary / _ABOUT, {"name": self.name, **about})
            sync_folder(temporary)
            os.rename(temporary, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise disk_error(error, f"make job {self.name}", self.path) from error

    def about(self) -> dict[str, Any]:
        """What the job was made with.

        Raises:
            RunError: there is no such job, or its file is damaged.
        """
        return self._read(_ABOUT)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.path / name} cannot be read ({error}); restore the folder, or start a new "
                "run"
            ) from error
        return found

    def examples(self) -> Examples:
        """The examples that the job trains on.

        Raises:
            RunError: they cannot be read.
        """
        return job_examples.read(self.path / _EXAMPLES)

    def fingerprint(self) -> int:
        """A hash of the examples; the name of the job does not enter."""
        return zlib.crc32((self.path / _EXAMPLES).read_bytes())

    def ended(self) -> dict[str, Any] | None:
        """State and message of a job that ended without a model."""
        return self._read(_ENDED) if (self.path / _ENDED).exists() else None

    def end(self, state: str, message: str) -> None:
        """Note that the job ends without a model, and drop the state of its training."""
        write_json(self.path / _ENDED, {"state": state, "message": message})
        shutil.rmtree(self._progress, ignore_errors=True)

    @property
    def _progress(self) -> Path:
        return self.path / "progress"

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Keep the state after ``step``, in place of the one before.

        Raises:
            RunError: the disk is full.
        """
        remove_unfinished(self._progress)
        checkpoint.save(self._progress, step, state)
        checkpoint.prune(self._progress, 1)

    def restore(self) -> dict[str, Any] | None:
        """The newest state, if there is one.

        Raises:
            RunError: none of those that there are can be read.
        """
        found = checkpoint.load_newest(self._progress)
        return None if found is None else found[1]

    @property
    def has_model(self) -> bool:
        """Whether the job succeeded."""
        return (self.path / _MODEL).is_dir()

    def finish(self, model: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Keep the result of the job, and drop the state of its training.

        Raises:
            RunError: the disk is full.
        """
        remove_unfinished(self.path)
        write_json(self.path / "result.json", about)
        checkpoint.write_state(self.path / _MODEL, model, {})
        shutil.rmtree(self._progress, ignore_errors=True)

    def result(self) -> dict[str, Any]:
        """What was said of the job when it succeeded.

        Raises:
            RunError: it cannot be read.
        """
        return self._read("result.json")

    def model(self) -> dict[str, Any]:
        """What came of the job.

        Raises:
            RunError: it is no longer there, or damaged.
        """
        if not self.has_model:
            raise RunError(
                f"the model of job {self.name} is not in {self.path}; restore the folder, or start "
                "a new run"
            )
        try:
            return checkpoint.load(self.path / _MODEL)
        except checkpoint.BrokenCheckpointError as error:
            raise RunError(
                f"the model of job {self.name} is damaged: {error}; restore the folder, or start a "
                "new run"
            ) from error


def drop_models(jobs: Path, keep: int) -> None:
    """Delete the models of all jobs in ``jobs`` but the ``keep`` that ended last."""
    found = [path for path in jobs.glob(f"*/{_MODEL}") if path.is_dir()]
    found.sort(key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    for path in found[:-keep]:
        # Renamed first, so that a half-deleted one is not taken for a model.
        hidden = path.with_name(f".tmp-{path.name}")
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)
