"""``plugrl resume``: take up a run again."""

from __future__ import annotations

import typer

from plugrl.commands._run_arguments import Quiet, Run, RunsFolder, Verbose

CONTEXT_SETTINGS = {"allow_extra_args": True}
EXAMPLES = """
plugrl resume runs/quickstart/20260101-120000-a1b2c3
plugrl resume latest
"""


def command(
    context: typer.Context,
    run: Run,
    runs_folder: RunsFolder = "runs",
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its newest checkpoint, or from the start when it has none."""
    from pathlib import Path

    from plugrl.commands._output import set_verbosity
    from plugrl.commands._results import emit_results
    from plugrl.core.errors import UsageError
    from plugrl.core.experiment import resume
    from plugrl.core.run.folder import find

    folder = find(run, Path(runs_folder))
    if context.args:
        raise UsageError(
            f"resume takes a run and no {context.args[0]!r}: it goes on as it is configured; edit "
            f"{folder / 'config.yaml'} before, or begin another run with plugrl train "
            f"{folder / 'config.yaml'} {' '.join(context.args)}"
        )
    verbosity = set_verbosity(verbose=verbose, quiet=quiet)
    emit_results([resume(folder)], verbosity)
