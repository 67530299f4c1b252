"""Arguments that several commands share, above all those on runs and model folders."""

from __future__ import annotations

from typing import Annotated

import typer

#: How a run is named; see :func:`plugrl.core.run.folder.find`.
RUN_HELP = "Path, id, beginning of an id, experiment (its newest run) or latest."
Run = Annotated[str, typer.Argument(help=RUN_HELP, metavar="RUN")]
Target = Annotated[
    str,
    typer.Argument(
        help="Path, id, beginning of an id, experiment (its newest run), latest, or a model "
        "folder.",
        metavar="RUN_OR_MODEL",
    ),
]
RunsFolder = Annotated[str, typer.Option(help="Where runs are looked up.")]
Checkpoint = Annotated[
    str, typer.Option(help="Of a run: newest, best (by its validation score) or a step.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Print every message, and all metrics at the end.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors and the run folder only.")]
