"""``plugrl eval``: held-out metrics of a run or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plugrl.commands._run_arguments import AsJson, Checkpoint, RunsFolder, Target

EXAMPLES = """
plugrl eval latest validation
plugrl eval latest harder.yaml validate.temperature=0.7
plugrl eval exported/policy benchmark.yaml --output answers.jsonl
plugrl eval latest red_team --output report
"""


def command(
    target: Target,
    evaluation: Annotated[
        str,
        typer.Argument(
            help="A YAML file with the problems and who judges, a split of the run's scenario, or "
            "an evaluation of the trainer's own, such as red_team.",
            metavar="EVALUATION",
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to set.")
    ] = None,
    checkpoint: Checkpoint = "newest",
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="PATH",
            help="Write every attempt as a JSON line; of the trainer's own evaluations, the folder "
            "of the report, where an interrupted one goes on.",
        ),
    ] = None,
    runs_folder: RunsFolder = "runs",
    as_json: AsJson = False,
) -> None:
    """Evaluate a run or a model folder; nothing is trained and the run is not touched.

    Over a run, EVALUATION may set data, scenario, rollout_worker and validate; everything else is
    the run's. A model folder is models.policy of EVALUATION.
    """
    from plugrl.commands._output import check_writable, emit_json, emit_table, note, write_lines
    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.run.checkpoints.checkpoint import step_of

    folder, file = None, None
    with open_checkpoint(
        target, evaluation, overrides or [], runs_folder=runs_folder, checkpoint=checkpoint
    ) as saved:
        if output is not None and evaluation in saved.trainer.reports:
            folder = Path(output)
        elif output is not None:
            file = output
            check_writable(file)
        metrics = saved.evaluate(evaluation, folder)
        if file is not None:
            # A trainer inside a sequence counts the steps of its phase, a checkpoint those of all.
            step = step_of(Path(saved.origin))
            moved = {} if step < 0 else {"step": step}
            write_lines(file, [{**record, **moved} for record in saved.run.samples])
    if as_json:
        written = {} if folder is None else {"folder": str(folder)}
        emit_json({"evaluated": saved.origin, "metrics": metrics, **written})
        return
    note(f"evaluated {saved.origin}")
    if folder is not None:
        note(f"wrote {folder}")
    emit_table([{"name": k, "value": v} for k, v in metrics.items()], ("name", "value"))
