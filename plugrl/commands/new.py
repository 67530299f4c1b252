"""``plugrl new``: the files of a plugin that installs, passes the conformance kit and trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plugrl.commands._group import examples, new_app

PLUGIN_EXAMPLES = """
plugrl new plugin plugrl-mine --kind trainer
plugrl new plugin plugrl-judge --kind evaluator --path ../packages
"""

app = new_app("Write the files of a new plugin.", PLUGIN_EXAMPLES)


@app.callback()
def _group() -> None:
    """Keep ``plugin`` a subcommand."""


@app.command("plugin", epilog=examples(PLUGIN_EXAMPLES))
def plugin(
    name: Annotated[str, typer.Argument(help="Name of the package, such as plugrl-mine.")],
    kind: Annotated[
        str, typer.Option(help="What it provides: trainer or evaluator.", show_default=True)
    ] = "trainer",
    path: Annotated[
        Path, typer.Option(help="Folder in which the package's folder is made.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write an installable package with one component, its configuration and its tests."""
    from plugrl.commands._output import note
    from plugrl.commands._scaffold import files

    for target, text in files(name, kind).items():
        file = path / name / target
        if file.exists() and not force:
            print(f"skip   {file} (exists)")
            continue
        _write(file, text)
        print(f"write  {file}")
    note(f"next: cd {path / name} && pip install . && pytest")


def _write(file: Path, text: str) -> None:
    from plugrl.core.errors import UsageError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another --path") from error
