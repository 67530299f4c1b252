"""``MlflowTracker``: runs in MLflow, by default in a database of the run folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import PluginError
from plugrl.core.plugins.user_code.working_folder import absolute_path
from plugrl.core.run.tracking.tables import SampleTables
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker

Item = TypeVar("Item")
log = logging.getLogger("plugrl.mlflow")

#: The tag that a run is found by when it is resumed.
RUN_TAG = "plugrl.run"
#: Entries that one request may have, and the longest value of a parameter.
_METRICS, _PARAMS, _LONGEST = 1000, 100, 6000
_ENDS = {"done": "FINISHED", "failed": "FAILED"}


class MlflowTracker(Tracker):
    """Metrics, the configuration as parameters and file, samples and report as artifacts.

    A resumed run goes on as the same run of MLflow; steps that it has already are not sent again.

    Raises:
        PluginError: the package ``mlflow`` cannot be imported.
    """

    packages: ClassVar[tuple[str, ...]] = ("mlflow",)
    requirement: ClassVar[str] = "plugrl[mlflow]"
    remedy: ClassVar[str] = (
        "check `tracking_uri` of mlflow, or leave it out for a database in the run folder; "
        "metrics.jsonl of the run folder is complete"
    )

    @dataclass
    class Config:
        """Where the run appears."""

        tracking_uri: str | None = described(
            None,
            "address of a server or database; null: MLFLOW_TRACKING_URI, or sqlite in `folder`",
        )
        experiment: str | None = described(
            None, "name of the experiment; null: project_name, or experiment_name"
        )
        run_name: str | None = described(None, "name; null: experiment and id of the run")
        tags: dict[str, str] = described({}, "tags of the run")
        folder: str | None = described(
            None, "folder of a local store, which several runs may share; null: the run folder"
        )
        samples: bool = described(True, "whether samples are written, as tables in JSON")
        config: bool = described(True, "whether the configuration is written")
        report: bool = described(True, "whether report.html is written")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Its own patience with a server that is down is minutes for each call.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        try:
            from mlflow import entities
            from mlflow.tracking import MlflowClient
        except Exception as error:
            raise PluginError(
                f"the tracker mlflow cannot import the package mlflow ({error}): "
                'pip install "plugrl[mlflow]"'
            ) from error
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._folder = absolute_path(self.config.folder) if self.config.folder else None
        self._client_class, self._entities = MlflowClient, entities
        self._client: Any = None
        self._id = ""
        self._metrics: list[Any] = []
        self._held: dict[str, int] = {}
        self._tables = SampleTables()

    def start(self, run: TrackedRun) -> int | None:
        """Make the run, or find it again by its tag."""
        section = self.config
        folder = self._folder or run.folder / "mlflow"
        uri = section.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._client = self._client_class(tracking_uri=uri)
        name = section.experiment or run.project or run.experiment
        experiment = self._experiment(name, folder if uri.startswith("sqlite:") else None)
        found = self._found(experiment, run.id) if run.resumed else None
        if found is not None:
            self._id = found.info.run_id
            self._client.update_run(self._id, status="RUNNING")
            self._held = {key: self._last(key) for key in found.data.metrics}
            log.info("mlflow: %s, run %s, goes on", uri, self._id)
            # Of the last step something may be missing; what is there is not sent again.
            return max(self._held.values(), default=0) - 1
        tags = {**section.tags, RUN_TAG: run.id, "mlflow.source.name": "plugrl"}
        run_name = section.run_name or f"{run.experiment}-{run.id}"
        made = self._client.create_run(experiment, tags=tags, run_name=run_name)
        self._id = made.info.run_id
        if section.config:
            self._configuration(run.config)
        log.info("mlflow: %s, run %s", uri, self._id)
        return -1

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Keep metrics until :meth:`flush`; write the samples of the step."""
        now = int(time.time() * 1000)
        for name, value in metrics.items():
            key = re.sub(r"[^\w\-. :/]", "_", name)
            if step > self._held.get(key, -1):
                self._metrics.append(self._entities.Metric(key, float(value), now, step))
        if len(self._metrics) >= _METRICS:
            self.flush()
        self._write_samples(step)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep a record until its step is logged."""
        if self.config.samples:
            self._tables.add(name, record)

    def flush(self) -> None:
        """Send the metrics that were kept."""
        metrics, self._metrics = self._metrics, []
        for part in _parts(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=part)

    def artifact(self, name: str, path: Path) -> None:
        """Write the report."""
        if self.config.report:
            self._client.log_artifact(self._id, str(path))

    def finish(self, outcome: str) -> None:
        """End the run: FINISHED, FAILED, or KILLED when somebody stopped it."""
        self.flush()
        self._write_samples(None)
        self._client.set_terminated(self._id, _ENDS.get(outcome, "KILLED"))

    def _experiment(self, name: str, folder: Path | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        place = None if folder is None else (folder.resolve() / "artifacts").as_uri()
        try:
            return str(self._client.create_experiment(name, artifact_location=place))
        except Exception:
            # Another run may have made it at the same time.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _found(self, experiment: str, run_id: str) -> Any:
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run_id}'")
        return found[0] if found else None

    def _last(self, key: str) -> int:
        history = self._client.get_metric_history(self._id, key)
        return max((metric.step for metric in history), default=-1)

    def _configuration(self, config: Mapping[str, Any]) -> None:
        from plugrl.core.config.sources.writer import dump_yaml

        self._client.log_text(self._id, dump_yaml(dict(config)), "config.yaml")
        flat = [
            self._entities.Param(re.sub(r"[^\w\-. :/]", "_", key)[:250], value[:_LONGEST])
            for key, value in _flat(config)
        ]
        for part in _parts(flat, _PARAMS):
            self._client.log_batch(self._id, params=part)

    def _write_samples(self, step: int | None) -> None:
        for table in self._tables.take(step):
            content = {"columns": table.columns, "data": table.data}
            place = f"samples/{table.name}/step-{table.step:08d}.json"
            self._client.log_dict(self._id, content, place)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each value with its path; a list and an empty mapping are one value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, str(value)


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
