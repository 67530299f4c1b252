"""``plugrl ls``: the names that a configuration can use."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.commands._output import emit_table
from plugrl.core.errors import UsageError
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = """
plugrl ls
plugrl ls trainers
plugrl ls recipes
plugrl ls evaluators --json
"""


def command(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND|recipes]", help="One kind, or recipes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")] = False,
) -> None:
    """List the components and recipes that a configuration can name.

    Nothing is imported: the list comes from the metadata of the installed packages, and what
    each is about from the docstrings in their files. Stability is that of the kind's contract.
    """
    from plugrl.core.plugins.kinds import KINDS, current_kind

    plurals = {row.plural: row.name for row in KINDS.values()}
    names = {**plurals, **{name: name for name in KINDS}, "recipes": "recipe", "recipe": "recipe"}
    wanted = None if kind is None else current_kind(kind.replace("-", "_"))
    if wanted is not None and wanted not in names:
        raise UsageError(
            f"there is no kind {kind!r}{did_you_mean(wanted, names) or ';'}"
            f" kinds: {', '.join(plurals)}, recipes"
        )
    rows = _recipes() if wanted is None or names[wanted] == "recipe" else []
    if wanted is None or names[wanted] != "recipe":
        rows = _components(None if wanted is None else names[wanted]) + rows
    emit_table(rows, ("kind", "name", "stability", "provider", "about"), as_json=as_json)


def _components(kind: str | None) -> list[dict[str, Any]]:
    from plugrl.core.plugins.kinds import KINDS
    from plugrl.core.plugins.packages.summaries import summary
    from plugrl.core.plugins.registry import default_registry

    return [
        {
            "kind": record.kind,
            "name": record.name,
            "provider": record.provider,
            "stability": "stable" if KINDS[record.kind].stable else "provisional",
            "about": summary(record),
            "reference": record.reference,
            "target": record.place,
        }
        for record in default_registry().records(kind)
    ]


def _recipes() -> list[dict[str, Any]]:
    from plugrl.core.config.sources.lookup import recipes
    from plugrl.core.plugins.packages.recipes import all_recipes

    return [
        {
            "kind": "recipe",
            "name": recipe.name,
            "provider": recipe.provider,
            "about": _first_comment(recipe.path) if recipe.path else "its file is missing",
            "reference": recipe.reference,
            "target": str(recipe.path or recipe.target),
        }
        for recipe in all_recipes(recipes())
    ]


def _first_comment(path: Path) -> str:
    """The first sentence of the comment that the file begins with: what the recipe is about."""
    from plugrl.core.plugins.packages.summaries import first_sentence

    with path.open(encoding="utf-8", errors="replace") as stream:
        comment = [line.strip() for line in takewhile(lambda line: line.startswith("#"), stream)]
    return first_sentence("\n".join(line.lstrip("# ") for line in comment))
