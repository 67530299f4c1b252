"""``plugrl sweep``: a grid of values with several seeds, or a search by a searcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.commands._run_arguments import AsJson

if TYPE_CHECKING:
    from subprocess import Popen

    from plugrl.core.searched_sweep import SearchedSweep

EXAMPLES = """
plugrl sweep quickstart trainer.phases.1.models.policy.train.learning_rate=5e-4,1e-3 --seeds 3
plugrl sweep experiment.yaml trainer.algorithm.advantage=grpo,rloo data.batch_size=16,32
plugrl sweep experiment.yaml seed=1,2,3 --metric validation/reward --json
plugrl sweep experiment.yaml --with optuna --trials 40
plugrl sweep experiment.yaml --with optuna --trials 40 --workers 4 --name wide
"""


def command(
    config: Annotated[str, typer.Argument(help="A YAML file or the name of a recipe.")],
    grid: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=A,B,C]...", help="Values to try; one value sets it for all."),
    ] = None,
    searcher: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="NAME", help="Search sweep.space by optuna or a plugin's searcher."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Runs of a search in all, earlier ones included.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs of a search that are trained at a time.")
    ] = 1,
    name: Annotated[
        str | None,
        typer.Option(help="Name of a search, which the same command goes on with."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each combination, seeds counted up from the first.")
    ] = 1,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metric of the table; may be repeated. Otherwise the validation's."),
    ] = None,
    config_path: Annotated[
        list[str] | None,
        typer.Option(
            "--config-path",
            metavar="FOLDER",
            help="Further folder in which `defaults` are looked up.",
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print every message.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print errors and the table.")] = (
        False
    ),
) -> None:
    """Train every combination of the values and print mean and deviation over the seeds.

    All configurations are checked before the first run begins. A run that fails is listed as
    failed, the others go on, and the exit code is 1. A sweep that is interrupted prints the table
    of the runs that ended before.

    With --with, runs take values of sweep.space that a searcher proposes. Validations that are
    below those of other runs end a run early, and plugrl runs list marks the best. The same command
    goes on with a search that was interrupted or killed.
    """
    import logging

    from plugrl.commands._output import emit_table, note, set_verbosity
    from plugrl.core.errors import UsageError
    from plugrl.core.sweep import FinishedRun, plan_runs, table, train_runs, unknown_metric

    set_verbosity(verbose=verbose, quiet=quiet)
    if searcher is not None:
        if seeds > 1 or trials is None:
            raise UsageError(
                "--with needs --trials N, and no --seeds; a seed is a key of sweep.space"
            )
        if len(metric or []) > 1:
            raise UsageError("--with searches for one metric; write --metric once")
        from plugrl.core.searched_sweep import SearchedSweep

        sweep = SearchedSweep(
            config,
            _overrides(grid or []),
            searcher=searcher,
            trials=trials,
            config_path=config_path or [],
            metric=metric[0] if metric else None,
            name=name,
        )
        if not quiet:
            note(f"{len(sweep.trials())} of {trials} trials; the sweep is in {sweep.folder}")
        words = [config, *(grid or []), f"--with={searcher}", f"--trials={trials}"]
        words += [f"--name={sweep.name}", *(f"--metric={one}" for one in metric or [])]
        words += [f"--config-path={one}" for one in config_path or []]
        _search(sweep, words, workers, as_json=as_json)
        return
    if trials is not None or workers > 1 or name is not None:
        raise UsageError("--trials, --workers and --name are of a search; add --with optuna")
    plan = plan_runs(config, grid or [], seeds, config_path=config_path or [], metrics=metric or [])
    if not quiet:
        note(f"{len(plan)} runs: {len(plan) // seeds} combinations, seeds of each: {seeds}")
    ended: list[FinishedRun] = []
    try:
        for one in train_runs(plan):
            ended.append(one)
            # Said while there is time to stop; another combination may still have it.
            if len(ended) == 1 and (fault := unknown_metric(ended, metric or [])):
                logging.getLogger(__name__).warning("%s", fault)
    finally:
        rows = table(ended, metric or [])
        columns = list(dict.fromkeys(name for row in rows for name in row if name != "runs"))
        emit_table(rows, columns, as_json=as_json)
    if any(row["failed"] for row in rows):
        raise typer.Exit(1)
    fault = unknown_metric(ended, metric or [])
    if fault is not None:
        raise UsageError(fault)


def _overrides(grid: list[str]) -> list[str]:
    """The words of the grid, each of which has one value here."""
    from plugrl.core.errors import UsageError
    from plugrl.core.sweep import parse_axis

    for word in grid:
        key, values = parse_axis(word)
        if len(values) > 1:
            raise UsageError(f"{word!r} has several values; search them as a choice of sweep.space")
        if not key:
            raise UsageError(f"{word!r} is not of the form KEY=VALUE")
    return grid


def _search(sweep: SearchedSweep, words: list[str], workers: int, *, as_json: bool) -> None:
    """Train the trials, here and in further processes, and print them."""
    from plugrl.commands._output import emit_table

    processes = [_worker(words) for _ in range(workers - 1)]
    try:
        for _ in sweep.train():
            pass
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()
        rows = _trials(sweep)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        emit_table(rows, columns, as_json=as_json, empty="no trial has begun")
    if any(row["state"] == "failed" for row in rows):
        raise typer.Exit(1)


def _worker(words: list[str]) -> Popen[bytes]:
    """One more process of the sweep, whose table is that of this one."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "plugrl", "sweep", *words, "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _trials(sweep: SearchedSweep) -> list[dict[str, Any]]:
    from plugrl.core.plugins.user_code.working_folder import display_path

    best, rows = sweep.best(), []
    for one in sweep.trials():
        run = sweep.run_of(one.number)
        rows.append(
            {
                "trial": one.number,
                "state": one.state,
                "value": one.value,
                **one.values,
                "best": "*" if best is not None and one.number == best.number else "",
                "run": None if run is None else str(display_path(run)),
            }
        )
    return rows
