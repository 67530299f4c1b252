"""Sweeps: train every combination of some values with several seeds, and tabulate the results."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.core.config.preflight import metric_fault
from plugrl.core.errors import ConfigError, PlugrlError, RunInterrupted, RunTerminated, UsageError
from plugrl.core.experiment import TrainedRun, prepare, start
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.wording import did_you_mean

logger = logging.getLogger(__name__)

_OPENING, _CLOSING = "[{(", "]})"
#: The most runs of one sweep; more are taken for a typo.
MAX_RUNS = 1000


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: the values that distinguish its combination, and its seed."""

    config: str | Path
    varied: dict[str, str]
    overrides: tuple[str, ...]
    config_path: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a sweep; ``run`` is None if it failed."""

    planned: PlannedRun
    run: TrainedRun | None


def parse_axis(word: str) -> tuple[str, list[str]]:
    """Split ``key=a,b,c`` into the key and its values; commas in brackets or quotes do not split.

    Raises:
        UsageError: the key or a value is missing, or a value is repeated.
    """
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise UsageError(f"{word!r} is not of the form KEY=A,B,C")
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    values = [part.strip() for part in parts]
    if len(values) > 1 and "" in values:
        raise UsageError(f"{word!r}: a value is empty; write null for no value")
    if len(set(values)) < len(values):
        raise UsageError(f"{word!r}: a value is repeated; write each value once")
    return key, values


def plan_runs(
    config: str | Path,
    grid: Sequence[str],
    seeds: int,
    *,
    config_path: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> list[PlannedRun]:
    """Validate all runs of a sweep and list them in grid order; the last key varies fastest.

    Raises:
        UsageError: the grid cannot be read, or has more than ``MAX_RUNS`` runs, or no run reports
            one of ``metrics``.
        ConfigError: a combination is wrong.
        PluginError: a plugin that it needs cannot be used.
    """
    axes = [parse_axis(word) for word in grid]
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise UsageError(f"a key is repeated: {', '.join(keys)}; write all its values in one")
    if seeds > 1 and any(key == "seed" and len(values) > 1 for key, values in axes):
        raise UsageError("seed=A,B and --seeds name the seeds twice; leave one out")
    runs = seeds * math.prod(len(values) for _, values in axes)
    if runs > MAX_RUNS:
        raise UsageError(f"this is a sweep of {runs} runs; {MAX_RUNS} are possible")
    plan: list[PlannedRun] = []
    faults: dict[str, list[str | None]] = {name: [] for name in metrics}
    for chosen in itertools.product(*(values for _, values in axes)):
        words = [f"{key}={value}" for key, value in zip(keys, chosen, strict=True)]
        # A varied seed makes no combination of its own, because the table averages over seeds.
        varied = {
            key: value
            for (key, values), value in zip(axes, chosen, strict=True)
            if len(values) > 1 and key != "seed"
        }
        plan += _runs_per_seed(
            PlannedRun(config, varied, tuple(words), tuple(config_path), 0), seeds, faults
        )
    for found in faults.values():
        if found and all(found):
            raise UsageError(f"--metric: {found[0]}")
    return plan


def _runs_per_seed(
    run: PlannedRun, seeds: int, faults: Mapping[str, list[str | None]]
) -> Iterator[PlannedRun]:
    try:
        experiment = prepare(run.config, run.overrides, config_path=run.config_path, setup=True)
    except ConfigError as error:
        if not run.varied:
            raise
        raise error.at(_name(run.varied)) from error
    for name, found in faults.items():
        found.append(metric_fault(experiment.validated, experiment.registry, name))
    first = int(experiment.validated.tree["seed"])
    for seed in range(first, first + seeds):
        words = (*run.overrides, f"seed={seed}") if seeds > 1 else run.overrides
        yield PlannedRun(run.config, run.varied, words, run.config_path, seed)


def train_runs(plan: Iterable[PlannedRun]) -> Iterator[FinishedRun]:
    """Train the runs one after the other; a failure is logged, and the next run starts."""
    for planned_run in plan:
        name = _name({**planned_run.varied, "seed": str(planned_run.seed)})
        logger.info("%s", name)
        try:
            run = start(
                prepare(
                    planned_run.config,
                    planned_run.overrides,
                    config_path=planned_run.config_path,
                    setup=True,
                )
            )
        except (RunInterrupted, RunTerminated):
            raise
        except PlugrlError as error:
            logger.error("%s failed: %s", name, error)
            yield FinishedRun(planned_run, None)
        else:
            yield FinishedRun(planned_run, run)


def table(ended: Iterable[FinishedRun], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each combination: its values, its runs, and mean and deviation of each metric.

    Args:
        ended: the runs.
        metrics: names of metrics; by default the validation rewards or returns, else those of the
            rollouts, else the loss.
    """
    combinations: dict[tuple[tuple[str, str], ...], list[FinishedRun]] = {}
    for one in ended:
        combinations.setdefault(tuple(one.planned.varied.items()), []).append(one)
    last = {
        key: [one.run.last_metrics for one in runs if one.run is not None]
        for key, runs in combinations.items()
    }
    everything = [values for found in last.values() for values in found]
    names = list(metrics) or default_metrics(everything)
    return [
        {
            **dict(key),
            "seeds": len(last[key]),
            "failed": len(runs) - len(last[key]),
            **_statistics(last[key], names),
            "runs": [str(display_path(one.run.folder)) for one in runs if one.run is not None],
        }
        for key, runs in combinations.items()
    ]


def unknown_metric(ended: Iterable[FinishedRun], metrics: Sequence[str]) -> str | None:
    """The message about the first of ``metrics`` that no run has; None: there is none."""
    found = [one.run.last_metrics for one in ended if one.run is not None]
    known = sorted({name for values in found for name in values if "/" in name})
    for name in metrics:
        if found and not any(name in values for values in found):
            close = did_you_mean(name, known, 1)
            return f"no run has a metric {name!r}; they have: {', '.join(known)}{close}"
    return None


def default_metrics(everything: Sequence[dict[str, Any]]) -> list[str]:
    """The metrics of a table by default: held-out rewards, returns and accuracies, else the loss.

    Metrics of single agents or groups, such as ``validation/left/mean_episode_return``, are left
    out.
    """
    names = dict.fromkeys(name for values in everything for name in values)
    earned = [name for name in names if name.endswith("/reward") or _is_overall(name)]
    held_out = [name for name in earned if not name.startswith("rollout/")]
    return held_out or earned or [name for name in names if name == "train/loss"]


def _is_overall(name: str) -> bool:
    return name.partition("/")[2] in ("mean_episode_return", "accuracy")


def _statistics(runs: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in names:
        values = [float(values[name]) for values in runs if name in values]
        row[name] = statistics.fmean(values) if values else None
        if len(values) > 1:
            row[f"{name} sd"] = statistics.stdev(values)
    return row


def _name(varied: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in varied.items()) or "the run"
