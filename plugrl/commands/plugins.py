"""``plugrl plugins``: what is installed, what provides it, and whether it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.commands._group import examples, new_app
from plugrl.commands._output import emit_json, emit_table
from plugrl.core.errors import EXIT_PLUGIN, UsageError
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.commands._probe import Finding
    from plugrl.core.plugins.packages.installed import EntryPoint, PluginSelection

EXAMPLES = """
plugrl plugins list
plugrl plugins show plugrl-something
plugrl plugins check
"""
LIST_EXAMPLES = """
plugrl plugins list --kind trainer
plugrl plugins list --third-party --json
plugrl plugins list --load
"""
SHOW_EXAMPLES = """
plugrl plugins show plugrl-something
plugrl plugins show grpo --json
"""
CHECK_EXAMPLES = """
plugrl plugins check
plugrl plugins check plugrl-something --timeout 20
plugrl plugins check plugrl
"""
COLUMNS = ("kind", "name", "distribution", "version", "target", "status")

app = new_app("List, explain and check the plugins.", EXAMPLES)
Json = Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")]


@dataclass(frozen=True, slots=True)
class Row:
    """One entry point as the listings show it."""

    entry: EntryPoint
    kind: str
    status: str

    def fields(self) -> dict[str, Any]:
        """The row as a table row."""
        entry = self.entry
        return {
            "kind": self.kind,
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
            "target": entry.target,
            "status": self.status,
            "group": entry.group,
            "location": entry.location,
        }


@app.command("list", epilog=examples(LIST_EXAMPLES))
def list_plugins(
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only this kind, hook or command.")
    ] = None,
    third_party: Annotated[
        bool, typer.Option("--third-party", help="Leave out what plugrl itself provides.")
    ] = False,
    load: Annotated[
        bool, typer.Option("--load", help="Load the hook plugins and list their components too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List components, recipes, hooks and commands of the installed packages.

    Nothing is imported.
    """
    wanted = None if kind is None else _kind_name(kind)
    rows = [
        row.fields()
        for row in _rows()
        if wanted in (None, row.kind) and not (third_party and _is_own(row.entry))
    ]
    if load:
        rows += [row for row in _registered_by_hooks() if wanted in (None, row["kind"])]
    what = "plugins are" if wanted is None else f"{wanted} is"
    besides = " besides plugrl's own" if third_party else ""
    emit_table(rows, COLUMNS, as_json=as_json, empty=f"no {what} installed{besides}")


@app.command("show", epilog=examples(SHOW_EXAMPLES))
def show_plugin(
    name: Annotated[str, typer.Argument(help="A distribution, or a component by its name.")],
    as_json: Json = False,
) -> None:
    """Show a package and all it provides, without importing it."""
    rows = _named(name)
    packages = []
    for distribution in sorted({row.entry.distribution for row in rows}):
        mine = [row for row in _rows() if row.entry.distribution == distribution]
        packages.append(_package(distribution, mine))
    if as_json:
        emit_json(packages)
        return
    from plugrl.core.wording import shown

    for package in packages:
        provides = package.pop("provides")
        for key, value in package.items():
            if value:
                text = ", ".join(value) if isinstance(value, list) else value
                print(shown(f"{key}: {text}"))
        print()
        emit_table(provides, ("kind", "name", "target", "status"))


@app.command("check", epilog=examples(CHECK_EXAMPLES))
def check_plugins(
    name: Annotated[
        str | None, typer.Argument(help="A distribution or component; default: all but plugrl's.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one import may take.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Import each plugin in a process of its own; exit 3 when one of them cannot be used.

    Reports the seconds of the import, the heavy modules that it pulled in, and what is wrong.
    """
    from plugrl.commands._probe import probe

    rows = _named(name) if name else [row for row in _rows() if not _is_own(row.entry)]
    results = []
    for row in rows:
        finding = _misplaced(row) or probe(row.entry, timeout=timeout)
        problems = [finding.error] if finding.error else list(finding.warnings)
        status = finding.status
        if row.status != "ok" and row.status not in problems:
            problems.append(row.status)
            status = "warning" if status == "ok" else status
        results.append(
            row.fields()
            | {
                "status": status,
                "seconds": finding.seconds and round(finding.seconds, 3),
                "heavy": finding.heavy,
                "problem": "; ".join(problems),
            }
        )
    columns = ("distribution", "kind", "name", "status", "seconds", "heavy", "problem")
    empty = "no plugins are installed besides plugrl's own"
    emit_table(results, columns, as_json=as_json, empty=empty)
    if any(result["status"] == "failed" for result in results):
        raise typer.Exit(EXIT_PLUGIN)


def _misplaced(row: Row) -> Finding | None:
    """The finding for an entry of a misspelt group, which has nothing to import."""
    from plugrl.commands._probe import Finding
    from plugrl.core.plugins.packages.installed import group_problem

    problem = group_problem(row.entry.group)
    return Finding(error=problem) if problem else None


def _rows() -> list[Row]:
    from plugrl.core.plugins.kinds import KIND_OF_GROUP, KINDS, former_group_warning
    from plugrl.core.plugins.packages.installed import (
        COMMAND_GROUP,
        HOOK_GROUP,
        RECIPE_GROUP,
        PluginSelection,
        scan,
    )

    kinds = KIND_OF_GROUP | {
        RECIPE_GROUP: "recipe",
        HOOK_GROUP: "hook",
        COMMAND_GROUP: "command",
    }
    found = list(scan())
    declared = {(e.distribution, e.group, e.name) for e in found}

    def serves_earlier_versions(entry: EntryPoint) -> bool:
        """Whether its package declares it for this version too; both are one component."""
        if former_group_warning(entry.group) is None:
            return False
        group = KINDS[KIND_OF_GROUP[entry.group]].group
        return (entry.distribution, group, entry.name) in declared

    entries = [entry for entry in found if not serves_earlier_versions(entry)]
    kinds |= {entry.group: "unknown" for entry in entries if entry.group not in kinds}
    order = list(kinds)
    selection = PluginSelection.from_environment()
    providers: dict[tuple[str, str], list[EntryPoint]] = {}
    for entry in entries:
        if selection.refusal(entry.distribution, entry.name) is None:
            providers.setdefault((entry.group, entry.name), []).append(entry)
    entries.sort(key=lambda e: (order.index(e.group), e.name, e.distribution))
    return [
        Row(entry, kinds[entry.group], _status(entry, providers, selection)) for entry in entries
    ]


def _status(
    entry: EntryPoint,
    providers: dict[tuple[str, str], list[EntryPoint]],
    selection: PluginSelection,
) -> str:
    """``ok``, or why the bare name does not mean this entry."""
    from plugrl.core.plugins.packages.installed import COMMAND_GROUP, HOOK_GROUP, group_problem

    refusal = selection.refusal(entry.distribution, entry.name)
    if refusal is not None:
        return refusal
    problem = group_problem(entry.group)
    if problem is not None:
        return problem
    if entry.group == COMMAND_GROUP:
        from plugrl.cli import COMMANDS

        taken = any(row.name == entry.name for row in COMMANDS)
        return "never used: the name is a built-in command" if taken else "ok"
    if entry.group == HOOK_GROUP or _is_own(entry):
        return "ok"
    others = [e for e in providers[entry.group, entry.name] if e != entry]
    spelling = f"write {entry.distribution}/{entry.name}"
    if any(_is_own(other) for other in others) or _is_own_recipe(entry):
        return f"the bare name is plugrl's own: {spelling}"
    if others:
        names = ", ".join(other.distribution for other in others)
        return f"{names} has the name too: {spelling}"
    return "ok"


def _is_own_recipe(entry: EntryPoint) -> bool:
    from plugrl.core.config.sources.lookup import recipes
    from plugrl.core.plugins.packages.installed import RECIPE_GROUP

    return entry.group == RECIPE_GROUP and entry.name in recipes()


def _is_own(entry: EntryPoint) -> bool:
    from plugrl.core.plugins.kinds import OWN
    from plugrl.core.plugins.packages.installed import normalize

    return normalize(entry.distribution) == OWN


def _kind_name(text: str) -> str:
    from plugrl.core.plugins.kinds import KINDS, current_kind

    names = {kind.plural: kind.name for kind in KINDS.values()} | {name: name for name in KINDS}
    others = ("recipe", "hook", "command")
    names |= {name: name for name in others} | {f"{name}s": name for name in others}
    wanted = current_kind(text.replace("-", "_"))
    if wanted not in names:
        known = ", ".join([*KINDS, *others])
        raise UsageError(f"there is no kind {text!r}{did_you_mean(text, names) or ';'} {known}")
    return names[wanted]


def _named(name: str) -> list[Row]:
    from plugrl.core.plugins.packages.installed import normalize

    rows = _rows()
    wanted = normalize(name)
    found = [row for row in rows if normalize(row.entry.distribution) == wanted]
    found = found or [
        row
        for row in rows
        if name in (row.entry.name, f"{row.entry.distribution}/{row.entry.name}")
    ]
    if not found:
        known = {row.entry.distribution for row in rows} | {row.entry.name for row in rows}
        raise UsageError(
            f"nothing installed is called {name!r}{did_you_mean(name, sorted(known)) or ';'}"
            " see plugrl plugins list"
        )
    return found


def _package(distribution: str, rows: list[Row]) -> dict[str, Any]:
    from importlib.metadata import metadata

    fields = metadata(distribution)
    return {
        "distribution": distribution,
        "version": rows[0].entry.version,
        "summary": fields.get("Summary"),
        "author": fields.get("Author"),
        "license": fields.get("License-Expression") or fields.get("License"),
        "requires": fields.get_all("Requires-Dist") or [],
        "location": rows[0].entry.location,
        "provides": [row.fields() for row in rows],
    }


def _registered_by_hooks() -> list[dict[str, Any]]:
    from plugrl.core.plugins.discovery import load_hook_plugins
    from plugrl.core.plugins.registry import default_registry

    registry = default_registry()
    load_hook_plugins(registry)
    return [
        record.to_json()
        | {"status": "ok", "group": "", "location": record.file or "", "target": record.place}
        for record in registry.records()
        if record.source != "entry point"
    ]
