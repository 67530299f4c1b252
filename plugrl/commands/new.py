"""``plugrl new``: the files of a plugin, of a part of one, or of an experiment, which train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from plugrl.commands._group import examples, new_app
from plugrl.commands._templates import TEMPLATES
from plugrl.core.errors import UsageError

PLUGIN_EXAMPLES = """
plugrl new plugin plugrl-mine --kind trainer
plugrl new plugin plugrl-judge --kind evaluator --path ../packages
plugrl new plugin --add loss my_loss --path plugrl-mine
"""
EXPERIMENT_EXAMPLES = """
plugrl new experiment larger
plugrl train larger/larger.yaml
"""

app = new_app("Write a new plugin or experiment.", PLUGIN_EXAMPLES + EXPERIMENT_EXAMPLES)


@app.command("plugin", epilog=examples(PLUGIN_EXAMPLES))
def plugin(
    name: Annotated[
        str,
        typer.Argument(help="Name of the package, such as plugrl-mine; --add: the component's."),
    ],
    kind: Annotated[
        str,
        typer.Option(help=f"What the component is: {', '.join(TEMPLATES)}.", show_default=True),
    ] = "trainer",
    add: Annotated[
        str | None,
        typer.Option(
            "--add", metavar="KIND", help="Add a component of this kind to the package at --path."
        ),
    ] = None,
    path: Annotated[
        Path,
        typer.Option(help="Folder in which the package's folder is made; --add: the package."),
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write an installable package with one component, its recipe and its tests; or add one."""
    from plugrl.commands._output import note

    if add is not None:
        with _paths():
            _add(name, add, path, force=force)
        note(f"next: cd {path} && pip install . pytest && pytest")
        return
    from plugrl.commands._scaffold import files

    folder = path / name
    _write_all(files(name, kind), folder, force=force)
    note(f"next: cd {folder} && pip install . pytest && pytest")


@app.command("experiment", epilog=examples(EXPERIMENT_EXAMPLES))
def experiment(
    name: Annotated[str, typer.Argument(help="Name of the experiment, such as sums.")],
    path: Annotated[Path, typer.Option(help="Folder in which its folder is made.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write a recipe, an evaluator and data that train as they are."""
    from plugrl.commands._experiment import files
    from plugrl.commands._output import note

    folder = path / name
    _write_all(files(name), folder, force=force)
    note(f"next: plugrl train {folder / f'{name}.yaml'}")


def _add(name: str, kind: str, path: Path, *, force: bool) -> None:
    """Add a component to the package at ``path``."""
    from plugrl.commands._existing_package import read_package, with_entries
    from plugrl.commands._scaffold import Part, component_name, template_of

    template = template_of(kind)
    component = component_name(name, template)
    package = read_package(path)
    recipe = f"{component}.yaml"
    part = Part(package.name, package.import_name, component, template, recipe=recipe)
    modules = part.modules()
    declaration = with_entries(package, part.entries(), part.data)
    texts = {package.module / file: text for file, text in modules.items()}
    texts |= {package.folder / file: text for file, text in part.tests().items()}
    taken = sorted(str(file) for file, text in texts.items() if not _is_new(file, text))
    if taken and not force:
        raise UsageError(f"{taken[0]} exists; choose another name than {component}")
    for file, text in texts.items():
        _write(file, text)
        print(f"write  {file}")
    # Last, so that a package never names what is not there.
    _write(package.declaration, declaration)
    print(f"change {package.declaration}")


def _is_new(file: Path, text: str) -> bool:
    """Whether a file is not there, or holds the same, as data that two components share."""
    return not file.exists() or (file.is_file() and file.read_bytes() == text.encode())


@contextmanager
def _paths() -> Iterator[None]:
    """Say in one line which path cannot be looked at, such as one that is too long."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename}: {error.strerror}; choose another name or --path"
        ) from error


def _write_all(texts: Mapping[str, str], folder: Path, *, force: bool) -> None:
    with _paths():
        taken = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if taken and not force:
        raise UsageError(
            f"{folder} exists and is not empty; choose another name or --path, or pass --force "
            "to overwrite its files"
        )
    for target, text in texts.items():
        file = folder / target
        _write(file, text)
        print(f"write  {file}")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another --path") from error
