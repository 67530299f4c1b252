"""``plugrl report``: a page about one run, or about several beside each other."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._run_arguments import RUN_HELP, RunsFolder

EXAMPLES = """
plugrl report latest
plugrl report latest --open
plugrl report quickstart runs/quickstart/20260101-120000-ab12cd --output seeds.html
"""


def command(
    runs: Annotated[list[str], typer.Argument(help=RUN_HELP, metavar="RUN...")],
    output: Annotated[
        str | None,
        typer.Option(
            help="File to write; by default report.html, in the folder of the run or, of several "
            "runs, here."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    runs_folder: RunsFolder = "runs",
) -> None:
    """Write report.html anew: curves, samples, time and configuration on one page.

    Several runs, such as seeds, are drawn into the same curves, and the page lists what differs in
    their configurations. A run that goes on may be among them.
    """
    from pathlib import Path

    from plugrl.core.errors import UsageError
    from plugrl.core.run.folder import find
    from plugrl.core.run.report.page import report_file

    if output is not None and Path(output).is_dir():
        raise UsageError(
            f"--output {output} is a folder; name a file in it, such as {output}/report.html"
        )
    folders = list(dict.fromkeys(find(run, Path(runs_folder)) for run in runs))
    try:
        path = report_file(folders, None if output is None else Path(output))
    except OSError as error:
        place = output or (folders[0] if len(folders) == 1 else Path.cwd())
        raise UsageError(
            f"cannot write the report to {place}: {error.strerror or error}; choose another file "
            "with --output"
        ) from error
    print(path)
    if open_page:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
