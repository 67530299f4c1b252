"""``plugrl sweep``: a grid of values, each trained with several seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._run_arguments import AsJson

EXAMPLES = """
plugrl sweep quickstart trainer.phases.1.models.policy.train.learning_rate=5e-4,1e-3 --seeds 3
plugrl sweep experiment.yaml trainer.algorithm.advantage=grpo,rloo data.batch_size=16,32
plugrl sweep experiment.yaml seed=1,2,3 --metric validation/reward --json
"""


def command(
    config: Annotated[str, typer.Argument(help="A YAML file or the name of a recipe.")],
    grid: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=A,B,C]...", help="Values to try; one value sets it for all."),
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
    """
    import logging

    from plugrl.commands._output import emit_table, note, set_verbosity
    from plugrl.core.errors import UsageError
    from plugrl.core.sweep import FinishedRun, plan_runs, table, train_runs, unknown_metric

    set_verbosity(verbose=verbose, quiet=quiet)
    plan = plan_runs(config, grid or [], seeds, config_path=config_path or [], metrics=metric or [])
    if not quiet:
        note(f"{len(plan)} runs: {len(plan) // seeds} combinations with {seeds} seed(s) each")
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
