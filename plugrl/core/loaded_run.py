"""Loading trained runs and model folders, to evaluate, sample or export them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.lookup import find_main
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.experiment import (
    Experiment,
    apply_process_settings,
    build_trainer,
    prepare,
    without_functions,
)
from plugrl.core.null_run import UnrecordedRun
from plugrl.core.run.checkpoints import checkpoint as checkpoints
from plugrl.core.run.checkpoints.folder import checkpoint_folder
from plugrl.core.run.folder import find
from plugrl.core.run.initialization import read_config
from plugrl.core.run.loaded_state import restore_weights
from plugrl.core.trainer import Trainer

#: Sections that the configuration of an evaluation may set: the problems, and how they are judged.
EVALUATED = ("data", "scenario", "rollout_worker", "validate")
#: The name that stands for the files of `validate.data.data_files`, as if they were a split.
FILES = "validation"
_WHOLE = ("scenario",)
_REMEDY = "name another run; plugrl runs list shows them"


@dataclass(frozen=True)
class LoadedRun:
    """A trainer with loaded weights, of a run or a model folder, that records nothing."""

    trainer: Trainer
    run: UnrecordedRun
    origin: str
    #: Of the run; None: a model folder was loaded.
    folder: Path | None = None

    def evaluate(self, evaluation: str, output: Path | None = None) -> dict[str, float]:
        """Held-out metrics of the evaluation that the trainer was opened for.

        Args:
            evaluation: as of :func:`open_checkpoint`.
            output: the folder for the files of one of the trainer's own ``reports``, which alone
                have some; None: nothing is written.
        """
        if evaluation in self.trainer.reports:
            return self.trainer.report(evaluation, output, self.origin)
        return self.trainer.evaluate()


def is_model(target: str) -> bool:
    """Whether ``target`` is a model folder as ``save_pretrained`` writes it."""
    return (Path(target) / "config.json").is_file()


@contextmanager
def open_checkpoint(
    target: str,
    evaluation: str | None = None,
    overrides: Sequence[str] = (),
    *,
    runs_folder: str | Path = "runs",
    checkpoint: str = "newest",
    alone: bool = True,
) -> Iterator[LoadedRun]:
    """Load the trainer of a run or a model folder for the body of a ``with`` statement.

    Args:
        target: a run's path, id, beginning of an id, experiment or ``latest``; or a model folder.
        evaluation: a YAML file or recipe with other problems; a split of the run's scenario; or
            one of the ``reports`` of the run's trainer, which the caller then asks for.
        overrides: ``key=value`` strings, which take precedence over everything else.
        runs_folder: where runs are looked up.
        checkpoint: of a run: ``newest``, ``best`` (by its validation score) or a step.
        alone: apply the seed, threads and environment to this process; False in the middle of
            another run.

    Raises:
        UsageError: there is no such run or checkpoint; a model folder has none.
        ConfigError: the evaluation does not fit.
    """
    state: Mapping[str, Any] | None = None
    folder: Path | None = None
    with ExitStack() as stack:
        if is_model(target):
            if checkpoint != "newest":
                raise UsageError(
                    f"{target} is a model folder, which has no checkpoint {checkpoint!r}; leave "
                    "--checkpoint out, or name a run"
                )
            experiment, origin = _model_experiment(target, evaluation, overrides, alone), target
        else:
            folder = find(target, Path(runs_folder))
            path = find_checkpoint(folder, checkpoint)
            stack.enter_context(without_functions(folder, "eval"))
            tree, state = _phase_at_checkpoint(folder, path)
            experiment, origin = _run_experiment(tree, evaluation, overrides, alone), str(path)
        if alone:
            apply_process_settings(experiment)
        run = UnrecordedRun("a saved state", folder)
        stand_in: Any = run
        trainer = build_trainer(experiment.validated.last_phase, experiment.registry, stand_in)
        if state is not None:
            restore_weights(trainer, state, "trainer", origin, root=Trainer)
        try:
            yield LoadedRun(trainer, run, origin, folder)
        finally:
            run.close()


def trainer_of(target: str, runs_folder: str | Path = "runs") -> type[Trainer] | None:
    """The trainer of a run, without its state, in its last phase; None: of a model folder.

    Raises:
        UsageError: there is no such run.
    """
    if is_model(target):
        return None
    tree = read_config(find(target, Path(runs_folder)), "opened")
    found: type[Trainer] = prepare(tree, preflight=False).validated.last_phase.trainer
    return found


def _model_experiment(
    folder: str, evaluation: str | None, overrides: Sequence[str], setup: bool
) -> Experiment:
    source = {"models": {"policy": {"source": {"path": folder}}}}
    base = {"trainer": {"type": "evaluation"}, **source}
    if evaluation is None:
        return prepare(base, overrides, preflight=False, setup=setup)
    # As the last overrides, because the evaluation may be a recipe that sets a model itself.
    words = [f"models.policy.source.path={folder}", "models.policy.source.config=null"]
    words = [*overrides, *words]
    return prepare(evaluation, words, base=base, preflight=False, setup=setup)


def _run_experiment(
    tree: Mapping[str, Any], evaluation: str | None, overrides: Sequence[str], setup: bool
) -> Experiment:
    base: dict[str, Any] = {**tree}
    if evaluation is None:
        return prepare(base, overrides, preflight=False, setup=setup)
    reports = _reports(base, evaluation)
    if evaluation in reports:
        return prepare(base, overrides, preflight=False, setup=setup)
    if "validate" in base or "data" in base:
        # Trainers that only learn labels have no section `validate`.
        base["validate"] = {**base.get("validate", {}), "enabled": True}
    if _is_file(evaluation):
        _drop_replaced_sections(base, evaluation)
        return prepare(evaluation, overrides, base=base, preflight=False, setup=setup)
    if "data" in base:
        _select_split(base, evaluation)
    elif evaluation != FILES:
        # Small networks are evaluated in environments, of which there is one kind to test in.
        others = "".join(f", {name} for {what}" for name, what in reports.items())
        raise UsageError(
            f"{evaluation}: no such file or recipe; write {FILES} for episodes in the "
            f"run's own environment{others}"
        )
    return prepare(base, overrides, preflight=False, setup=setup)


def _select_split(base: dict[str, Any], split: str) -> None:
    """Validate on a split of the run's data, or on the files that the run validates on.

    Raises:
        UsageError: the run has no data with splits.
    """
    data = base["validate"].get("data") or {}
    if data.get("data_files") and split == FILES:
        return
    named = data.get("name") or (base.get("data") or {}).get("name")
    if base.get("scenario") is None and not named:
        files = f"{FILES} for the files that the run validates on, or "
        raise UsageError(
            f"{split}: no such file or recipe, and the run has no scenario with "
            f"splits; write {files if data.get('data_files') else ''}a YAML file that "
            "sets validate.data.data_files"
        )
    base["validate"]["data"] = {**data, "data_files": [], "splits": [split]}


def _drop_replaced_sections(base: dict[str, Any], file: str) -> None:
    """Drop the sections of a run that the file of an evaluation replaces as a whole.

    Raises:
        ConfigError: the file sets what belongs to the run.
    """
    given = compose(file).tree
    foreign = [name for name in given if name not in EVALUATED]
    if foreign:
        raise ConfigError(
            f"{file}: an evaluation of a run has the sections {', '.join(EVALUATED)}; "
            f"{', '.join(foreign)} {'belong' if len(foreign) > 1 else 'belongs'} to the run"
        )
    for name in EVALUATED:
        if _replaces_section(name, given.get(name), base.get(name)):
            base.pop(name, None)


def _reports(base: Mapping[str, Any], evaluation: str) -> Mapping[str, str]:
    """The ``reports`` of the run's trainer; empty if ``evaluation`` is a file."""
    if "/" in evaluation or evaluation.endswith((".yaml", ".yml")):
        return {}
    reports: Mapping[str, str] = prepare(base, preflight=False).validated.trainer.reports
    return reports


def _replaces_section(name: str, given: Any, held: Any) -> bool:
    """Whether a section replaces that of the run as a whole, because it is of another type."""
    if given is None or not isinstance(held, Mapping):
        return False
    kind = given.get("type") if isinstance(given, Mapping) else given
    return name in _WHOLE or (kind is not None and kind != held.get("type"))


def _is_file(evaluation: str) -> bool:
    try:
        find_main(evaluation)
    except ConfigError:
        if evaluation.endswith((".yaml", ".yml")) or "/" in evaluation:
            raise
        return False
    return True


def _phase_at_checkpoint(
    run: Path, checkpoint: Path
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Configuration and state of the phase that the run was in when it saved a checkpoint."""
    state = checkpoints.load(checkpoint)["trainer"]
    validated = prepare(read_config(run, "opened"), preflight=False).validated
    while validated.phases:
        validated = validated.phases[state["phase"]][1]
        state = state["child"]
    return validated.tree, state


def find_checkpoint(run: Path, which: str) -> Path:
    """The folder of a run's checkpoint: ``newest``, ``best`` or a step.

    Raises:
        UsageError: there is no such checkpoint, or none can be read.
    """
    folder = checkpoint_folder(run)
    found = checkpoints.candidates(folder)
    if not found:
        raise UsageError(
            f"{run} has no checkpoint; it ended before the first one was saved; {_REMEDY}"
        )
    if which == "newest":
        newest = checkpoints.latest(folder)
        if newest is None:
            raise UsageError(
                f"none of the {len(found)} checkpoints of {run} can be read; {_REMEDY}"
            )
        return newest
    if which == "best":
        scored = [(checkpoints.read_manifest(path).get("score"), path) for path in found]
        best = max(((s, p) for s, p in scored if s is not None), default=None)
        if best is None:
            raise UsageError(
                f"no checkpoint of {run} has a score; set settings.checkpoint_every so that the "
                "best validation is saved, or take the newest"
            )
        return best[1]
    for path in found:
        if which.isdigit() and checkpoints.step_of(path) == int(which):
            return path
    steps = ", ".join(str(checkpoints.step_of(path)) for path in reversed(found))
    raise UsageError(f"{run} has no checkpoint {which!r}; it has steps {steps}, newest and best")
