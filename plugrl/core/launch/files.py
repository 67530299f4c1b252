"""The files that a configuration names and that travel with its job.

A relative path names a file of this machine, which travels; an absolute one, or one below ``~``,
is a path of the place where the job runs. Files of installed packages, such as recipes, are there
already.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plugrl.core.config.hidden import leaves
from plugrl.core.config.sources.compose import ComposedConfig
from plugrl.core.config.sources.files import locate, locate_pattern
from plugrl.core.config.sources.lookup import RECIPES, recipes
from plugrl.core.config.sources.origins import KeyPath, nearest
from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.packages.recipes import all_recipes

#: Files of one job; more than that is a folder that nobody meant to send.
MOST_FILES = 5000
#: Beside a file of code or an agent's configuration: what it may import or name.
_BESIDE_CODE = (".py",)
_BESIDE_AGENT = (".py", ".yaml", ".yml", ".json", ".md", ".txt", ".j2", ".jinja")
_PACKAGE = "__init__.py"


def is_relative(text: str) -> bool:
    """Whether a path means a file of this machine."""
    return not (os.path.isabs(text) or text.startswith("~"))


def traveling_files(composed: ComposedConfig, validated: ValidatedConfig) -> tuple[Path, ...]:
    """The files that travel, absolute and sorted: configurations, code, data.

    Raises:
        ConfigError: there are more than :data:`MOST_FILES`.
    """
    installed = _packaged()
    found = {file for file in composed.files if not _is_packaged(file, composed, installed)}
    known = set(_paths(validated))
    for path, text in _texts(composed.tree):
        located = _located(text, path, composed)
        if located is None or str(located) not in known:
            continue
        if _is_packaged(located, composed, installed):
            continue
        for file in _with_what_it_needs(located, path):
            found.add(file)
            if len(found) > MOST_FILES:
                raise ConfigError(
                    f"{located} has more than {MOST_FILES:,} files, too many to travel; put it on "
                    "storage of the cluster and write its absolute path"
                )
    return tuple(sorted(found))


def absent_files(composed: ComposedConfig, validated: ValidatedConfig) -> list[str]:
    """Absolute paths that the configuration names and that this machine lacks."""
    known = set(_paths(validated))
    return sorted(
        text
        for _, text in _texts(composed.tree)
        if not is_relative(text) and text in known and not glob.glob(os.path.expanduser(text))
    )


def code_files(file: Path) -> Iterator[Path]:
    """A file of code with the modules and packages beside it."""
    yield file
    yield from _beside(file.parent, _BESIDE_CODE)


def _located(text: str, path: KeyPath, composed: ComposedConfig) -> Path | None:
    """The file that a relative text may name, as validation finds it; None: there is none."""
    if not text or not is_relative(text):
        return None
    origin = nearest(composed.origins, path)
    bare = text.partition(":")[0]
    return (
        locate_pattern(text, origin)
        or locate(text, origin)
        or (locate(bare, origin) if bare.endswith(".py") else None)
    )


def _with_what_it_needs(found: Path, path: KeyPath) -> Iterator[Path]:
    if not found.exists():
        for name in sorted(glob.glob(str(found), recursive=True)):
            if os.path.isfile(name):
                yield Path(name)
    elif found.is_dir():
        yield from _whole(found)
    elif found.suffix == ".py":
        yield from code_files(found)
    else:
        yield found
        if path[-1] == "agent_config":
            yield from _beside(found.parent, _BESIDE_AGENT)


def _whole(folder: Path) -> Iterator[Path]:
    """All files in a folder, but hidden ones and compiled code."""
    for above, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_passed_over(name))
        for name in sorted(files):
            if not _is_passed_over(name) and os.path.isfile(os.path.join(above, name)):
                yield Path(above, name)


def _beside(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files of some sorts in a folder, with the Python packages in it."""
    for each in sorted(folder.iterdir()):
        if _is_passed_over(each.name):
            continue
        if each.is_file() and each.suffix in suffixes:
            yield each
        elif each.is_dir() and (each / _PACKAGE).is_file():
            yield from _whole(each)


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name in ("__pycache__", "site-packages")


def _packaged() -> set[Path]:
    return {r.path.resolve() for r in all_recipes(recipes()) if r.path is not None}


def _is_packaged(file: Path, composed: ComposedConfig, installed: set[Path]) -> bool:
    """Whether a file belongs to an installed recipe, and the configuration is not one by path."""
    folders = {RECIPES.resolve()} | {path.parent for path in installed}
    main, here = composed.source, file.resolve()
    inside = [folder for folder in folders if here.is_relative_to(folder)]
    if not inside:
        return False
    # Whoever copies recipes into a project of their own runs them from there.
    return main is None or not is_named_by_path(main) or here in installed


def is_named_by_path(source: Path) -> bool:
    """Whether the main file was named by its path, not by the name of a recipe."""
    return source.resolve() not in _packaged()


def _texts(tree: Any) -> Iterator[tuple[KeyPath, str]]:
    return ((path, value) for path, value in leaves(tree, ()) if isinstance(value, str))


def _paths(validated: ValidatedConfig) -> Iterator[str]:
    """Every absolute path among the values of a configuration and its phases."""
    for _, text in _texts(validated.tree):
        if os.path.isabs(text) or text.startswith("~"):
            yield text
            yield text.partition(":")[0]
    for _, phase in validated.phases:
        yield from _paths(phase)
