"""Arguments that the commands on runs and model folders share."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        help="Path, id or start of the id of a run, latest, or a model folder.",
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
