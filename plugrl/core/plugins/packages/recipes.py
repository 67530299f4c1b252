"""Recipes: configurations that come with a package and are trained by name.

plugrl's own lie in its folder ``recipes``. A plugin names each of its recipes in an entry point of
the group ``plugrl.recipes``, as ``NAME = package.folder:file.yaml``; neither the package nor
anything in it is imported. A bare name of plugrl's own is never taken by a plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plugrl.__about__ import __version__
from plugrl.core.errors import AmbiguousComponentError, PluginError
from plugrl.core.plugins.kinds import OWN
from plugrl.core.plugins.packages.installed import (
    RECIPE_GROUP,
    EntryPoint,
    PluginSelection,
    normalize,
    scan,
)
from plugrl.core.plugins.packages.summaries import folders_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One recipe; ``target`` is what the entry point says, or the file of plugrl's own."""

    name: str
    distribution: str
    version: str
    target: str
    path: Path | None

    @property
    def reference(self) -> str:
        """The spelling that is never ambiguous."""
        return f"{self.distribution}/{self.name}"

    @property
    def provider(self) -> str:
        """The package and its version, for messages."""
        return f"{self.distribution} {self.version}"

    def file(self) -> Path:
        """The file.

        Raises:
            PluginError: the package does not contain it.
        """
        if self.path is None:
            raise PluginError(
                f"recipe {self.name!r} of {self.provider}: there is no file {self.target}; write "
                "package.folder:file.yaml, and list the file in the package_data of the package"
            )
        return self.path


def recipe_of(entry: EntryPoint) -> Recipe:
    """The recipe that an entry point names."""
    return Recipe(
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        target=entry.target,
        path=_resource(entry.target),
    )


def all_recipes(own: Mapping[str, Path], *, disabled: bool = False) -> list[Recipe]:
    """plugrl's ``own`` recipes, then those of the plugins, sorted; ``disabled`` ones if asked."""
    selection = PluginSelection.from_environment()
    found = [
        Recipe(name=name, distribution=OWN, version=__version__, target=str(path), path=path)
        for name, path in own.items()
    ]
    return found + [
        recipe_of(entry)
        for entry in sorted(scan(), key=lambda e: (e.name, e.distribution))
        if entry.group == RECIPE_GROUP
        and normalize(entry.distribution) != OWN
        and (disabled or selection.refusal(entry.distribution, entry.name) is None)
    ]


def find_recipe(name: str, own: Mapping[str, Path]) -> Path | None:
    """The file of the recipe that ``name`` or ``distribution/name`` means; None: there is none.

    Raises:
        AmbiguousComponentError: two packages provide the bare name.
        PluginError: its package does not contain it.
    """
    matches = [recipe for recipe in all_recipes(own) if _matches(name, recipe)]
    mine = [recipe for recipe in matches if recipe.distribution == OWN]
    chosen = mine or matches
    if len(chosen) > 1:
        providers = " and ".join(recipe.provider for recipe in chosen)
        spellings = " or ".join(recipe.reference for recipe in chosen)
        raise AmbiguousComponentError(
            f"recipe {name!r} is provided by {providers}; write {spellings}"
        )
    return chosen[0].file() if chosen else None


def refusal(name: str) -> str | None:
    """Which disabled package would provide the recipe ``name``; None: none would."""
    selection = PluginSelection.from_environment()
    for recipe in all_recipes({}, disabled=True):
        reason = selection.refusal(recipe.distribution, recipe.name)
        if reason is not None and _matches(name, recipe):
            return f"the recipe is provided by {recipe.provider}, which is {reason}"
    return None


def _matches(name: str, recipe: Recipe) -> bool:
    distribution, _, bare = name.rpartition("/")
    provider = normalize(recipe.distribution)
    return bare == recipe.name and (not distribution or normalize(distribution) == provider)


def _resource(target: str) -> Path | None:
    package, _, name = target.partition(":")
    paths = [Path(folder, name) for folder in folders_of(package)] if name else []
    return next((path for path in paths if path.is_file()), None)
