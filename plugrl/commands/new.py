"""``plugrl new``: the files of a plugin that installs, passes the conformance kit and trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plugrl.commands._group import examples, new_app
from plugrl.core.errors import UsageError

PLUGIN_EXAMPLES = """
plugrl new plugin plugrl-mine --kind trainer
plugrl new plugin plugrl-judge --kind evaluator --path ../packages
plugrl new plugin plugrl-shaped --kind loss
"""

app = new_app("Write the files of a new plugin.", PLUGIN_EXAMPLES)


@app.callback()
def _group() -> None:
    """Keep ``plugin`` a subcommand."""


@app.command("plugin", epilog=examples(PLUGIN_EXAMPLES))
def plugin(
    name: Annotated[str, typer.Argument(help="Name of the package, such as plugrl-mine.")],
    kind: Annotated[
        str,
        typer.Option(
            help="trainer, evaluator, rollout_worker, scenario, advantage, loss or tracker.",
            show_default=True,
        ),
    ] = "trainer",
    path: Annotated[
        Path, typer.Option(help="Folder in which the package's folder is made.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write an installable package with one component, its configuration and its tests."""
    from plugrl.commands._output import note
    from plugrl.commands._scaffold import files

    texts = files(name, kind)
    folder = path / name
    if not force and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(
            f"{folder} exists and is not empty; choose another name or --path, or pass --force "
            "to overwrite its files"
        )
    for target, text in texts.items():
        file = folder / target
        _write(file, text)
        print(f"write  {file}")
    note(f"next: cd {folder} && pip install . pytest && pytest")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another --path") from error
