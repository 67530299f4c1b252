"""Where configuration files and recipes, plugrl's own and those of plugins, are found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.packages.recipes import all_recipes, find_recipe, refusal
from plugrl.core.wording import close_names, did_you_mean

#: The recipes that ship with the package.
RECIPES = Path(__file__).resolve().parents[3] / "recipes"
#: Parts of recipes, such as self_hosted_common, which `defaults` name with or without this folder.
COMMON = RECIPES / "common"
_SUFFIXES = (".yaml", ".yml")


def recipes() -> dict[str, Path]:
    """Give plugrl's own recipes by name, sorted."""
    if not RECIPES.is_dir():
        return {}
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def find_main(source: str | Path, folders: Sequence[Path] = ()) -> Path:
    """Find the file that a command names: a path, or a name in ``folders`` or of a recipe.

    A bare name that is no file is looked up in ``folders``, then among the recipes, then with
    ``.yaml`` in the working directory.

    Raises:
        ConfigError: there is no such file, or two packages have a recipe of that name; the
            message has the close names.
        PluginError: the package of a recipe does not contain it.
    """
    path = Path(source)
    if _exists(path) and path.is_dir():
        raise ConfigError(f"{source} is a folder; name the YAML file in it")
    if _exists(path):
        return path
    found = _in_folders(str(source), folders) or find_recipe(str(source), recipes())
    found = found or _in_folders(str(source), [Path.cwd(), COMMON])
    if found is None:
        raise ConfigError(f"{source}: no such file or recipe{_known(str(source))}")
    return found


def find_default(
    entry: str, beside: Path, folders: Sequence[Path], excluding: Path | None
) -> Path | None:
    """Find a file of a ``defaults`` list.

    It is looked up beside the file, in ``folders``, in the folders above the file up to the
    working directory, and among the recipes.
    """
    path = _in_folders(entry, [beside, *folders, *_above(beside)], excluding)
    if path is None:
        recipe = find_recipe(entry, recipes()) or _in_folders(entry, [RECIPES, COMMON], excluding)
        path = recipe if recipe is not None and not _same(recipe, excluding) else None
    return path


def unknown_default(entry: str, beside: Path) -> str:
    """Say that a ``defaults`` entry was not found, with the close names."""
    near = [file.stem for file in sorted(beside.glob("*.y*ml"))] if beside.is_dir() else []
    parts = [file.stem for file in sorted(COMMON.glob("*.yaml"))]
    close = did_you_mean(entry, [*near, *_names(), *parts])
    return f"no file {entry}.yaml beside or above it, on the config path or in the recipes{close}"


def _above(folder: Path) -> list[Path]:
    """The folders above one in the working directory, the nearest first."""
    here, root = folder.absolute(), Path.cwd()
    return [above for above in here.parents if above == root or root in above.parents]


def _in_folders(name: str, folders: Sequence[Path], excluding: Path | None = None) -> Path | None:
    for folder in folders:
        for suffix in ("", *_SUFFIXES):
            path = folder / f"{name}{suffix}"
            if _exists(path) and path.is_file() and not _same(path, excluding):
                return path
    return None


def _same(path: Path, other: Path | None) -> bool:
    return other is not None and path.resolve() == other.resolve()


def _known(name: str) -> str:
    stem = Path(name).name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    refused = refusal(name)
    if refused is not None:
        return f"; {refused}"
    files = sorted(Path(name).parent.glob("*.y*ml"))
    near = [str(path) for path in files if path.suffix in _SUFFIXES]
    by_stem = {**{recipe: recipe for recipe in _names()}, **{Path(p).stem: p for p in near}}
    close = [by_stem[found] for found in close_names(stem, by_stem)]
    return f"; did you mean {', '.join(close)}?" if close else "; see plugrl ls recipes"


def _names() -> list[str]:
    return list(dict.fromkeys(recipe.name for recipe in all_recipes(recipes())))


def _exists(path: Path) -> bool:
    """Whether there is such a file or folder; a name too long for one is none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
