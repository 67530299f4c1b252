"""``plugrl eval``: held-out metrics of a run or a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plugrl.commands._saved import AsJson, Checkpoint, RunsFolder, Target

EXAMPLES = """
plugrl eval latest validation
plugrl eval latest harder.yaml validate.temperature=0.7
plugrl eval exported/policy benchmark.yaml --output answers.jsonl
"""


def command(
    target: Target,
    evaluation: Annotated[
        str,
        typer.Argument(
            help="A YAML file with the problems and who judges, or a split of the run's scenario.",
            metavar="EVALUATION",
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to set.")
    ] = None,
    checkpoint: Checkpoint = "newest",
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write every attempt as a JSON line.")
    ] = None,
    runs_folder: RunsFolder = "runs",
    as_json: AsJson = False,
) -> None:
    """Evaluate a run or a model folder; nothing is trained and the run is not touched.

    Over a run, EVALUATION may set data, scenario, rollout_worker and validate; everything else is
    the run's. A model folder is models.policy of EVALUATION.
    """
    from plugrl.commands._output import check_writable, emit_json, emit_table, note, write_lines
    from plugrl.core.run.checkpoint import step_of
    from plugrl.core.saved import opened

    if output is not None:
        check_writable(output)
    with opened(
        target, evaluation, overrides or [], runs_folder=runs_folder, checkpoint=checkpoint
    ) as saved:
        metrics = saved.trainer.evaluate()
        if output is not None:
            # A trainer inside a sequence counts the steps of its phase, a checkpoint those of all.
            step = step_of(Path(saved.origin))
            moved = {} if step < 0 else {"step": step}
            write_lines(output, [{**record, **moved} for record in saved.run.samples])
    if as_json:
        emit_json({"evaluated": saved.origin, "metrics": metrics})
    else:
        note(f"evaluated {saved.origin}")
        emit_table([{"name": k, "value": v} for k, v in metrics.items()], ("name", "value"))
