"""Sweeps by a searcher: it proposes values, runs are trained with them, hopeless ones end early.

A sweep is a folder, ``<runs folder>/.sweeps/<name>``: the searcher's own files, ``sweep.json`` with
what it was begun with, a folder for each trial, and ``best.json``. The same command goes on with
it, and several processes may: a trial belongs to the process that holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plugrl.core.config.preflight import metric_fault
from plugrl.core.config.schemas.sweep import ParameterConfig
from plugrl.core.errors import (
    ConfigError,
    PlugrlError,
    RunError,
    RunInterrupted,
    RunTerminated,
    StopRun,
    UsageError,
)
from plugrl.core.experiment import TrainedRun, prepare, resume, start
from plugrl.core.factory import make_component
from plugrl.core.plugins.callbacks import as_callbacks
from plugrl.core.plugins.user_code.error_location import one_line, raised_at
from plugrl.core.plugins.user_code.working_folder import absolute_path, display_path
from plugrl.core.run.atomic_writes import disk_error, write_json
from plugrl.core.run.folder import SWEEP_FILE, folder_name
from plugrl.core.run.lock import RunLock, is_locked
from plugrl.core.run.records.jsonl_file import parse_record
from plugrl.core.searcher import Searcher, Trial
from plugrl.core.sweep import MAX_RUNS, default_metrics

logger = logging.getLogger(__name__)

#: The folder of all sweeps, beside the runs.
SWEEPS = ".sweeps"
#: Sections that change neither what is learned nor what is searched.
_OUTSIDE = ("settings", "environment", "trackers", "resource")


class SearchedSweep:
    """A sweep by a searcher, begun or gone on with.

    Args:
        config: a YAML file or the name of a recipe.
        overrides: ``key=value`` strings.
        config_path: further folders in which ``defaults`` are looked up.
        searcher: its name.
        trials: how many runs the sweep has in all.
        metric: what is searched for, over ``sweep.metric``.
        name: of the sweep; None: ``experiment_name``.

    Raises:
        UsageError: the space is empty, a metric is reported by no run, or the sweep was begun with
            another configuration.
        ConfigError: the configuration is wrong, with a value of the space or without.
        PluginError: the searcher or a plugin of the run cannot be used.
    """

    def __init__(
        self,
        config: str | Path,
        overrides: Sequence[str],
        *,
        searcher: str,
        trials: int,
        config_path: Sequence[str] = (),
        metric: str | None = None,
        name: str | None = None,
    ) -> None:
        self._config, self._overrides = config, tuple(overrides)
        self._config_path = tuple(config_path)
        experiment = prepare(config, overrides, config_path=config_path, setup=True)
        tree = experiment.validated.tree
        section = tree["sweep"]
        self.space = {key: ParameterConfig(**one) for key, one in section["space"].items()}
        self.maximize = section["direction"] == "maximize"
        self.metric = metric or section["metric"]
        self.most = trials
        if trials > MAX_RUNS:
            raise UsageError(f"--trials is {trials}; {MAX_RUNS} are possible")
        if not self.space:
            raise UsageError(
                f"{config} has no sweep.space; write the values to search, such as "
                "sweep: {space: {seed: {type: int, low: 0, high: 9}}}"
            )
        if self.metric is not None:
            fault = metric_fault(experiment.validated, experiment.registry, self.metric)
            if fault is not None:
                raise UsageError(f"the metric of the sweep: {fault}")
        self._check_space()
        self._searcher: Searcher = make_component(
            "searcher", {"type": searcher, **section["searcher"]}
        )
        runs = absolute_path(str(tree["settings"]["runs_folder"]))
        self.name = folder_name(name or str(tree["experiment_name"]))
        self.folder = runs / SWEEPS / self.name
        self._open(_definition(tree, searcher, self.metric), int(tree["seed"]))

    def _check_space(self) -> None:
        """Check the ends of every range and each choice, one key at a time."""
        for key, one in self.space.items():
            for value in one.ends():
                word = override(key, value)
                try:
                    prepare(
                        self._config,
                        (*self._overrides, word),
                        config_path=self._config_path,
                        setup=True,
                    )
                except ConfigError as error:
                    raise error.at(f"sweep.space: {word}") from error

    def _open(self, definition: dict[str, Any], seed: int) -> None:
        file = self.folder / "sweep.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._turn():
                if file.exists():
                    self._compare(json.loads(file.read_text(encoding="utf-8")), definition)
                else:
                    write_json(file, definition)
                self._call("open", self.folder, self.space, maximize=self.maximize, seed=seed)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{display_path(file)} cannot be read ({error}); give the sweep another --name"
            ) from error
        except OSError as error:
            raise disk_error(error, "make the folder of the sweep", self.folder) from error

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        old, new = dict(_flat(before)), dict(_flat(json.loads(json.dumps(now))))
        changed = [key for key in {**old, **new} if old.get(key, _flat) != new.get(key, _flat)]
        if changed:
            shown = ", ".join(
                f"{key} {old.get(key, 'unset')!s:.40}, now {new.get(key, 'unset')!s:.40}"
                for key in sorted(changed)[:3]
            )
            raise UsageError(
                f"the sweep {self.name} was begun with another configuration ({shown}); give this "
                "one another --name"
            )

    def _call(self, method: str, *given: Any, **named: Any) -> Any:
        """Call the searcher, whose faults are errors that name it and its files.

        Raises:
            RunError: it raised something; its files may be damaged.
        """
        try:
            return getattr(self._searcher, method)(*given, **named)
        except (PlugrlError, OSError):
            raise
        except Exception as error:
            name, place = type(self._searcher).__name__, raised_at(error)
            at = f" at {place}" if place else ""
            raise RunError(
                f"{name}.{method} raised {one_line(error)}{at}; if its files in "
                f"{display_path(self.folder)} are damaged, give the sweep another --name"
            ) from error

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time takes trials and marks the best.

        Raises:
            PlugrlError: what it then writes cannot be written, such as on a full disk.
        """
        try:
            with open(self.folder / "turn", "w", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise disk_error(error, "keep the trials of the sweep", self.folder) from error

    def trials(self) -> list[Trial]:
        """All trials so far, those of other processes included."""
        return list(self._call("trials"))

    def run_of(self, number: int) -> Path | None:
        """The run folder of a trial; None: it has not got that far."""
        found = self._note(number).get("run")
        return Path(found) if isinstance(found, str) and Path(found).is_dir() else None

    def best(self) -> Trial | None:
        """The best trial of those that are done; None: none is."""
        done = [one for one in self.trials() if one.state == "done" and one.value is not None]
        sign = 1 if self.maximize else -1
        # Of equal ones the first.
        return max(done, key=lambda one: (sign * (one.value or 0.0), -one.number), default=None)

    def train(self) -> Iterator[Trial]:
        """Train trials until there are as many as wanted, abandoned ones of earlier processes too.

        A trial that fails is logged, and the next one begins.
        """
        while (claimed := self._claim()) is not None:
            trial, lock = claimed
            try:
                yield self._train(trial)
            finally:
                lock.release()

    def _claim(self) -> tuple[Trial, RunLock] | None:
        with self._turn():
            trials = self.trials()
            left = [
                one
                for one in trials
                if one.state == "running" and not is_locked(self._trial_folder(one.number))
            ]
            if not left and len(trials) >= self.most:
                return None
            trial = left[0] if left else self._call("ask")
            if not isinstance(trial, Trial):
                raise RunError(f"the searcher proposed {type(trial).__name__}, which is no Trial")
            for key, value in trial.values.items():
                if key not in self.space or not self.space[key].holds(value):
                    raise RunError(f"the searcher proposed {key}={value!r}, outside of its space")
            folder = self._trial_folder(trial.number)
            folder.mkdir(parents=True, exist_ok=True)
            return trial, RunLock(folder)

    def _train(self, trial: Trial) -> Trial:
        words = [override(key, value) for key, value in trial.values.items()]
        logger.info("trial %d: %s", trial.number, " ".join(words))
        report, earlier = _Report(self, trial.number), self.run_of(trial.number)
        try:
            if earlier is not None:
                ended = resume(earlier, callbacks=[report])
            else:
                experiment = prepare(
                    self._config,
                    (*self._overrides, *words),
                    config_path=self._config_path,
                    setup=True,
                )
                ended = start(experiment, as_callbacks([report]))
            if self._note(trial.number).get("pruned"):
                logger.info("trial %d is pruned", trial.number)
                return self._tell(trial, "pruned")
            return self._tell(trial, "done", self._value(ended))
        except (RunInterrupted, RunTerminated):
            raise
        except PlugrlError as error:
            logger.error("trial %d failed: %s", trial.number, error)
            return self._tell(trial, "failed")

    def _value(self, ended: TrainedRun) -> float:
        name, value = self._found(ended.last_metrics)
        if value is None:
            raise RunError(
                f"{display_path(ended.folder)} ended with no {name or 'reward of a validation'}; "
                "name another by --metric"
            )
        return value

    def _found(self, metrics: Mapping[str, Any]) -> tuple[str | None, float | None]:
        """Which of the metrics is searched for, and what it is where that is a number."""
        name = self.metric or next(iter(default_metrics([dict(metrics)])), None)
        value = metrics.get(name) if name is not None else None
        return name, None if value is None or not math.isfinite(value) else float(value)

    def _tell(self, trial: Trial, state: Any, value: float | None = None) -> Trial:
        with self._turn():
            before = self.best()
            self._call("tell", trial.number, state, value)
            best = self.best()
            if best is not None and (before is None or best.number != before.number):
                for one, is_best in ((before, False), (best, True)):
                    if one is not None:
                        self.mark(one.number, best=is_best)
                run = self.run_of(best.number)
                found = {"trial": best.number, "value": best.value, "values": dict(best.values)}
                write_json(self.folder / "best.json", {**found, "run": str(run)})
        return replace(trial, state=state, value=value)

    def mark(self, number: int, *, best: bool) -> None:
        """Say in the run folder of a trial which one it is, for ``plugrl runs list``."""
        run = self.run_of(number)
        if run is not None:
            write_json(run / SWEEP_FILE, {"sweep": self.name, "trial": number, "best": best})

    def report(self, number: int, step: int, metrics: Mapping[str, Any]) -> bool:
        """Tell the searcher what a validation found; True: the trial is to end."""
        _, value = self._found(metrics)
        # Before the first step a run is as good as its beginning.
        if step < 1 or value is None or not self._call("report", number, step, value):
            return False
        self.note(number, pruned=True)
        return True

    def note(self, number: int, **facts: Any) -> None:
        """Keep what another process has to know of a trial."""
        file = self._trial_folder(number) / "trial.json"
        write_json(file, {**self._note(number), **facts})

    def _note(self, number: int) -> dict[str, Any]:
        """What is known of a trial; of one whose file is damaged, nothing."""
        try:
            file = self._trial_folder(number) / "trial.json"
            return parse_record(file.read_bytes()) or {}
        except OSError:
            return {}

    def _trial_folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:04d}"


class _Report:
    """The callback of a trial: notes where its run is, and ends it when it is hopeless."""

    def __init__(self, sweep: SearchedSweep, number: int) -> None:
        self._sweep, self._number = sweep, number
        self._is_hopeless = False

    def plugrl_run_start(self, run: Any) -> None:
        """Note the run folder."""
        self._sweep.note(self._number, run=str(run.folder.resolve()))
        self._sweep.mark(self._number, best=False)

    def plugrl_evaluation_end(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Report the metric."""
        self._is_hopeless |= self._sweep.report(self._number, step, metrics)

    def plugrl_step_end(self) -> None:
        """End the run where its step is complete."""
        if self._is_hopeless:
            raise StopRun


def override(key: str, value: Any) -> str:
    """``key=value``, with the value as JSON, which is read back as it is."""
    return f"{key}={json.dumps(value)}"


def _definition(tree: Mapping[str, Any], searcher: str, metric: str | None) -> dict[str, Any]:
    """What a sweep is: what all its runs have in common, and how they are searched."""
    common = {key: value for key, value in tree.items() if key not in _OUTSIDE}
    return {"searcher": searcher, "metric": metric, "config": common}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path.removeprefix("config."), value
