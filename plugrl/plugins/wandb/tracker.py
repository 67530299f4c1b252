"""``WandbTracker``: runs in Weights & Biases, offline without an account."""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import PluginError
from plugrl.core.plugins.user_code.working_folder import absolute_path, display_path
from plugrl.core.run.tracking.tables import SampleTable, SampleTables
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker
from plugrl.plugins.wandb.offline import cut_sessions, wait_until_written

log = logging.getLogger("plugrl.wandb")


class WandbTracker(Tracker):
    """Metrics, samples as tables, the configuration and the report.

    A resumed run goes on under the same id. Offline, what was written after the checkpoint is cut
    off; online, steps that the server has already are not sent again.

    Raises:
        PluginError: the package ``wandb`` cannot be imported.
    """

    packages: ClassVar[tuple[str, ...]] = ("wandb",)
    requirement: ClassVar[str] = "plugrl[wandb]"
    remedy: ClassVar[str] = (
        "set `mode: offline` of wandb and upload later with `wandb sync`; "
        "metrics.jsonl of the run folder is complete"
    )

    @dataclass
    class Config:
        """Where the run appears."""

        project: str | None = described(None, "project; null: project_name, or plugrl")
        name: str | None = described(None, "name; null: experiment and id of the run")
        group: str | None = described(None, "group of runs that belong together")
        tags: list[str] = described([], "tags")
        entity: str | None = described(None, "user or team; null: your default")
        notes: str | None = described(None, "a longer description")
        job_type: str | None = described(None, "kind of run, such as train")
        mode: Literal["auto", "online", "offline"] = described(
            "auto", "auto: online with an API key or login, else offline"
        )
        host: str | None = described(None, "address of a server of your own; null: WANDB_HOST")
        folder: str | None = described(None, "for its files; null: the run folder")
        samples: bool = described(True, "whether samples are sent, as tables")
        config: bool = described(True, "whether the configuration is sent")
        report: bool = described(True, "whether report.html is sent")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            import wandb
        except Exception as error:
            raise PluginError(
                f"the tracker wandb cannot import the package wandb ({error}): "
                'pip install "plugrl[wandb]"'
            ) from error
        self._folder = absolute_path(self.config.folder) if self.config.folder else None
        self._wandb = wandb
        self._run: Any = None
        self._held = -1
        self._tables = SampleTables()

    def start(self, run: TrackedRun) -> int | None:
        """Begin the run, or go on with it."""
        section = self.config
        folder = self._folder or run.folder
        folder.mkdir(parents=True, exist_ok=True)
        mode = self._mode()
        earlier = cut_sessions(folder, run.id, run.step) if run.resumed else None
        self._run = self._wandb.init(
            project=section.project or run.project or "plugrl",
            name=section.name or f"{run.experiment}-{run.id}",
            group=section.group,
            tags=list(section.tags) or None,
            entity=section.entity,
            notes=section.notes,
            job_type=section.job_type,
            id=run.id,
            dir=str(folder),
            mode=mode,
            config=dict(run.config) if section.config else None,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=self._settings(),
        )
        upload = f"offline: upload it with wandb sync {display_path(folder) / 'wandb'}/*-run-*"
        log.info("wandb: %s", self._run.url if mode == "online" else upload)
        if mode == "online":
            self._held = int(self._run.starting_step) - 1
            return self._held
        return earlier

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Send the metrics of a step, with the tables of its samples."""
        values: dict[str, Any] = dict(metrics)
        for table in self._tables.take(step):
            values[f"samples/{table.name}"] = self._table(table)
        if step > self._held:
            self._run.log(values, step=step)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep a record until its step is logged."""
        if self.config.samples and int(record.get("step", 0)) > self._held:
            self._tables.add(name, record)

    def artifact(self, name: str, path: Path) -> None:
        """Send the report."""
        if self.config.report:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def finish(self, outcome: str) -> None:
        """End the run."""
        for table in self._tables.take():
            self._run.log({f"samples/{table.name}": self._table(table)})
        self._run.summary["outcome"] = outcome
        file = Path(self._run.settings.sync_file)
        size = file.stat().st_size if file.exists() else 0
        self._run.finish(exit_code=0 if outcome == "done" else 1)
        # wandb comes back before its process has written everything.
        wait_until_written(file, size)

    def _table(self, table: SampleTable) -> Any:
        return self._wandb.Table(table.columns, data=table.data, allow_mixed_types=True)

    def _mode(self) -> str:
        key = os.environ.get("WANDB_KEY")
        if key:
            os.environ.setdefault("WANDB_API_KEY", key)
        if self.config.mode != "auto":
            return str(self.config.mode)
        wished = os.environ.get("WANDB_MODE", "")
        if wished in ("online", "offline"):
            return wished
        return "online" if _has_login(self._host()) else "offline"

    def _host(self) -> str | None:
        host = self.config.host or os.environ.get("WANDB_BASE_URL") or os.environ.get("WANDB_HOST")
        return str(host) if host else None

    def _settings(self) -> Any:
        host = self._host()
        if host and "://" not in host:
            host = f"https://{host}"
        return self._wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            init_timeout=45,
            x_disable_stats=True,
            # The command line, which may hold credentials, is part of it.
            x_disable_meta=True,
            x_disable_machine_info=True,
            **({"base_url": host} if host else {}),
        )


def _has_login(host: str | None) -> bool:
    """Whether there is an API key, or `wandb login` left one in ``~/.netrc``."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    name = (host or "api.wandb.ai").rpartition("://")[2].partition("/")[0].partition(":")[0]
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(name) is not None
    except (OSError, netrc.NetrcParseError):
        return False
