"""``TrackioTracker``: runs in trackio, whose dashboard runs on your own machine."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import PluginError
from plugrl.core.run.tracking.tables import SampleTables
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker

log = logging.getLogger("plugrl.trackio")
#: What trackio only warned of. It never raises, and would lose records without a word.
_warnings: list[str] = []


class TrackioTracker(Tracker):
    """Metrics, samples as tables, and the configuration.

    A resumed run goes on under the same name; steps that it has already are not sent again.

    Raises:
        PluginError: the package ``trackio`` cannot be imported, or another ``folder`` is in use.
    """

    packages: ClassVar[tuple[str, ...]] = ("trackio",)
    requirement: ClassVar[str] = "plugrl[trackio]"
    remedy: ClassVar[str] = (
        "check `space_id` or `server_url` of trackio, or leave both out for local files; "
        "metrics.jsonl of the run folder is complete"
    )

    @dataclass
    class Config:
        """Where the run appears."""

        project: str | None = described(None, "project; null: project_name, or experiment_name")
        name: str | None = described(
            None, "name, followed by the id of the run; null: experiment_name"
        )
        group: str | None = described(None, "group of runs that belong together")
        folder: str | None = described(None, "folder of all projects; null: TRACKIO_DIR or its own")
        space_id: str | None = described(None, "Hugging Face Space to log to")
        server_url: str | None = described(None, "trackio server to log to, with its write_token")
        samples: bool = described(True, "whether samples are written, as tables")
        config: bool = described(True, "whether the configuration is written")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        folder = self.config.folder
        if folder:
            os.environ["TRACKIO_DIR"] = str(Path(folder).resolve())
        try:
            import trackio
            from trackio import run, utils
        except Exception as error:
            raise PluginError(
                f"the tracker trackio cannot import the package trackio ({error}): "
                'pip install "plugrl[trackio]"'
            ) from error
        if folder and Path(utils.TRACKIO_DIR).resolve() != Path(folder).resolve():
            raise PluginError(
                f"the tracker trackio cannot write to {folder}: this process has written to "
                f"{utils.TRACKIO_DIR} before; use one folder, or another process"
            )
        for module in (trackio, run, utils):
            # They print to the terminal; as globals of the modules these names come first.
            module.print = _silence
            if hasattr(module, "_emit_nonfatal_warning"):
                module._emit_nonfatal_warning = _warn
        self._trackio = trackio
        self._run: Any = None
        self._held = -1
        self._tables = SampleTables()

    def start(self, run: TrackedRun) -> int | None:
        """Begin the run, or go on with it."""
        section = self.config
        _warnings.clear()
        project = section.project or run.project or run.experiment
        self._run = self._trackio.init(
            project=project,
            name=f"{section.name or run.experiment}-{run.id}",
            group=section.group,
            space_id=section.space_id,
            server_url=section.server_url,
            config=_without_reserved(run.config) if section.config else None,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        # Others of this process begin their own run; trackio would end this one first.
        self._trackio.context_vars.current_run.set(None)
        self._check()
        self._held = int(self._run._next_step) - 1
        log.info("trackio: project %s, run %s", project, self._run.name)
        return self._held

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Write the metrics of a step, with the tables of its samples."""
        if step > self._held:
            values: dict[str, Any] = dict(metrics)
            for table in self._tables.take(step):
                made = self._trackio.Table(columns=table.columns, data=table.data)
                values[f"samples/{table.name}"] = made
            self._run.log(values, step=step)
        self._check()

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep a record until its step is logged."""
        if self.config.samples and int(record.get("step", 0)) > self._held:
            self._tables.add(name, record)

    def flush(self) -> None:
        """See whether something went wrong in the thread of trackio."""
        self._check()

    def finish(self, outcome: str) -> None:
        """Write what is left."""
        for table in self._tables.take():
            made = self._trackio.Table(columns=table.columns, data=table.data)
            self._run.log({f"samples/{table.name}": made}, step=table.step)
        self._run.finish()
        self._check()

    def _check(self) -> None:
        if _warnings:
            text = _warnings[0]
            _warnings.clear()
            raise RuntimeError(text)


def _silence(*arguments: Any, **options: Any) -> None:
    pass


def _warn(message: str, *arguments: Any, **options: Any) -> None:
    with contextlib.suppress(IndexError):
        del _warnings[100:]
    _warnings.append(str(message))


def _without_reserved(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith("_")}
