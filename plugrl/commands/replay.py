"""``plugrl replay``: repeat a step that a run dumped."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._run_arguments import AsJson, Run, RunsFolder

EXAMPLES = """
plugrl replay latest 120
plugrl replay runs/quickstart/20260101-120000-a1b2c3 120 --json
"""


def command(
    run: Run,
    step: Annotated[int, typer.Argument(help="A step with a dump in RUN/dumps.", metavar="STEP")],
    runs_folder: RunsFolder = "runs",
    as_json: AsJson = False,
) -> None:
    """Repeat a dumped step from its own weights; exit 1 when the loss is another one.

    A guard dumps the step in which it finds a number that is not finite;
    runtime_monitor.dump_steps names further steps. The run itself is not touched.
    """
    from pathlib import Path

    from plugrl.commands._output import emit_table
    from plugrl.core.replay import replay
    from plugrl.core.run.folder import find

    replayed = replay(find(run, Path(runs_folder)), step)
    rows = [
        {
            "dump": str(one.dump),
            "what": one.what,
            "recorded_loss": one.recorded_loss,
            "equal": one.equal,
            **one.metrics,
        }
        for one in replayed
    ]
    emit_table(rows, ("what", "recorded_loss", "loss", "equal", "grad_norm"), as_json=as_json)
    if not all(one.equal for one in replayed):
        raise typer.Exit(1)
