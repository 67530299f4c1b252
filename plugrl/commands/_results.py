"""What ``plugrl train`` and ``plugrl resume`` print at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.commands._output import Verbosity, emit_runs, emit_table
from plugrl.core.wording import shown

if TYPE_CHECKING:
    from plugrl.core.config.validated import ValidatedConfig
    from plugrl.core.experiment import TrainedRun
    from plugrl.core.plugins.registry import Registry
    from plugrl.results import RunResult

#: Runs of one command that get a line of their own.
_ROWS = 10


def emit_results(runs: Sequence[TrainedRun], verbosity: Verbosity) -> None:
    """Print what runs came to and what to do next: fifteen lines at most, or all metrics too.

    Args:
        runs: those that one command trained, in order.
        verbosity: quiet prints the folders alone, verbose the table of metrics besides.
    """
    from plugrl.core.plugins.user_code.working_folder import display_path
    from plugrl.results import RunResult

    if verbosity == "quiet":
        for run in runs:
            print(shown(str(display_path(run.folder))))
        return
    results = [RunResult.of(run) for run in runs]
    if len(results) == 1:
        following = [f"{'next':<8}{line}" for line in next_commands(results[0])]
        print(shown("\n".join([results[0].summary(), *following])))
    else:
        _emit_several(results)
    if verbosity == "verbose":
        emit_runs(runs)


def _emit_several(runs: Sequence[RunResult]) -> None:
    """One line a run, and the mean over all."""
    from plugrl.core.plugins.user_code.working_folder import display_path

    rows, ends, metric = [], [], None
    for run in runs:
        found = run.headline
        row: dict[str, Any] = {"seed": run.config.seed, "state": run.status["state"]}
        if found is not None:
            metric = found.metric
            ends.append(found.last)
            row |= {"first": found.first, "last": found.last, "best": found.best}
        rows.append({**row, "run": str(display_path(run.folder))})
    emit_table(rows[:_ROWS], ("seed", "state", "first", "last", "best", "run"))
    if len(rows) > _ROWS:
        print(f"... and {len(rows) - _ROWS} more")
    if ends:
        spread = f"{min(ends):.4g} to {max(ends):.4g}"
        print(shown(f"{metric}: mean of the last {sum(ends) / len(ends):.4g} ({spread})"))


def next_commands(run: TrainedRun) -> list[str]:
    """The commands that fit what was trained, with the run filled in."""
    from plugrl.core.errors import PlugrlError
    from plugrl.core.experiment import prepare
    from plugrl.core.plugins.user_code.working_folder import display_path
    from plugrl.core.run.initialization import read_config

    name = shlex.quote(str(display_path(run.folder)))
    try:
        experiment = prepare(read_config(run.folder), preflight=False)
    except PlugrlError:
        # Such as one whose reward functions only a program has.
        return []
    return list(_commands(experiment.validated.last_phase, experiment.registry, name))


def _commands(validated: ValidatedConfig, registry: Registry, run: str) -> Iterator[str]:
    """Words after ``plugrl`` that the trainer of a configuration can answer."""
    from plugrl.core.trainer import Trainer

    trainer, models = validated.trainer, validated.tree.get("models") or {}
    trained = [name for name in models if _learns(models[name])]
    speaks = bool(trained) and hasattr(trainer, "loaded_models")
    option = f" --model {shlex.quote(trained[0])}" if trained and "policy" not in trained else ""
    if speaks and getattr(trainer, "generates", True):
        yield f'plugrl sample {run} "PROMPT"{option}'
    own = next(iter(trainer.reports), None)
    split = own or _split(validated.tree)
    if split is not None and (own or trainer.evaluate is not Trainer.evaluate):
        yield f"plugrl eval {run} {shlex.quote(split)}"
    if speaks and _writes_folders(validated, registry, (option.split() or ["policy"])[-1]):
        yield f"plugrl export {run} FOLDER{option}"
    yield f"plugrl report {run} --open"


def _learns(model: Any) -> bool:
    return isinstance(model, Mapping) and bool(model.get("train") or model.get("fine_tune"))


def _split(tree: Mapping[str, Any]) -> str | None:
    """What ``plugrl eval`` can evaluate a run on without a further file; None: nothing."""
    if "data" not in tree:
        return "validation" if tree.get("scenario") is not None else None
    data = (tree.get("validate") or {}).get("data") or {}
    if data.get("data_files"):
        return "validation"
    if tree.get("scenario") is None and not (data.get("name") or tree["data"].get("name")):
        return None
    return next(iter(data.get("splits") or ()), None)


def _writes_folders(validated: ValidatedConfig, registry: Registry, model: str) -> bool:
    """Whether the service that trains a model can write it for other software."""
    from plugrl.core.text.inference.services import BaseTrainService
    from plugrl.core.text.jobs.fine_tuning import FineTuneService

    refusing = (BaseTrainService.export, FineTuneService.export)
    records = [validated.records.get(f"models.{model}.{key}") for key in ("train", "fine_tune")]
    services = [registry.load(record) for record in records if record is not None]
    return any(getattr(service, "export", refusing[0]) not in refusing for service in services)
