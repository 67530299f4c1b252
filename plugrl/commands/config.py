"""``plugrl config``: what a configuration amounts to, and what it may contain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugrl.commands._group import examples, new_app
from plugrl.commands._run_arguments import AsJson

if TYPE_CHECKING:
    from plugrl.core.experiment import Experiment

EXAMPLES = """
plugrl config show experiment.yaml --origin
plugrl config schema trainer self_hosted_grpo
plugrl config diff experiment.yaml runs/experiment/20260101-120000-ab12
"""

app = new_app("Show, explain and compare configurations.", EXAMPLES)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to change.")
]
ConfigPath = Annotated[
    list[Path] | None, typer.Option("--config-path", help="A folder with files for `defaults`.")
]
Reveal = Annotated[
    bool,
    typer.Option(
        "--reveal", help="Print credentials and text of environment variables, hidden otherwise."
    ),
]

SHOW_EXAMPLES = """
plugrl config show quickstart
plugrl config show experiment.yaml data.batch_size=64 --origin
"""
SCHEMA_EXAMPLES = """
plugrl config schema trainer self_hosted_grpo
plugrl config schema section data
plugrl config schema section
plugrl config schema loss clipped --json
"""
DIFF_EXAMPLES = """
plugrl config diff a.yaml b.yaml
plugrl config diff runs/mine/20260101-120000-ab12 runs/mine/20260102-120000-cd34
"""


@app.command("show", epilog=examples(SHOW_EXAMPLES))
def show(
    config: Annotated[str, typer.Argument(help="A YAML file, a recipe or a run folder.")],
    overrides: Overrides = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say which file and line wrote each value.")
    ] = False,
    config_path: ConfigPath = None,
    reveal: Reveal = False,
    as_json: AsJson = False,
) -> None:
    """Print the whole configuration, with the defaults filled in."""
    from plugrl.commands._output import can_print, emit_json, emit_table
    from plugrl.core.config.sources.origins import dotted, nearest
    from plugrl.core.config.sources.writer import dump_yaml

    experiment = _prepare(config, overrides, config_path)
    tree = experiment.validated.tree if reveal else _public(experiment)
    if origin:
        rows = [
            {
                "key": dotted(path),
                "value": _format_value(value),
                "origin": str(nearest(origins, path)),
            }
            for origins in [experiment.validated.origins]
            for path, value in _leaves(tree)
        ]
        emit_table(rows, ("key", "value", "origin"), as_json=as_json)
    elif as_json:
        emit_json(tree)
    else:
        text = dump_yaml(tree)
        print(text if can_print(text) else dump_yaml(tree, ascii_only=True), end="")


@app.command("schema", epilog=examples(SCHEMA_EXAMPLES))
def schema(
    kind: Annotated[str, typer.Argument(help="A kind such as trainer or loss, or `section`.")],
    name: Annotated[
        str | None, typer.Argument(help="The component's name, or the section's; all, if none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the keys of a component or section: types, defaults and what they are for."""
    from plugrl.commands._output import emit_table
    from plugrl.core.config.schemas.describe import describe_component
    from plugrl.core.errors import UsageError
    from plugrl.core.plugins.kinds import KINDS
    from plugrl.core.plugins.registry import default_registry

    if kind == "section":
        if name is None:
            rows = [{"section": each, "read by": who} for each, who in _sections().items()]
            emit_table(rows, ("section", "read by"), as_json=as_json)
            return
        rows = _section_rows(name)
    elif name is None and kind in KINDS:
        raise UsageError(
            f"name one of the {KINDS[kind].plural}; see plugrl ls {KINDS[kind].plural}"
        )
    else:
        rows = describe_component(default_registry().get(kind, name or ""))
    if as_json:
        emit_table(rows, (), as_json=True)
        return
    if not rows:
        print(f"{kind} {name} has no keys but type")
        return
    for row in rows:
        row["default"] = "(required)" if row["required"] else _format_value(row["default"])
    more = ("trainers",) if "trainers" in rows[0] else ()
    emit_table(rows, ("key", "type", "default", *more, "help"))


def _sections() -> dict[str, list[str]]:
    """The sections of all trainers that can be loaded, each with those that read it."""
    from plugrl.core.config.schemas.sections import COMMON

    found: dict[str, list[str]] = {name: ["all"] for name in COMMON}
    for trainer, schemas in _trainers_sections().items():
        for name in schemas:
            if name not in COMMON:
                found.setdefault(name, []).append(trainer)
    return found


def _trainers_sections() -> dict[str, Any]:
    from plugrl.core.errors import PluginError
    from plugrl.core.plugins.registry import default_registry

    registry, found = default_registry(), {}
    for record in registry.records("trainer"):
        try:
            found[record.name] = registry.load(record).sections
        except PluginError:
            # `plugrl plugins check` says why.
            continue
    return found


def _section_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a section, as the trainers that read it do.

    Raises:
        UsageError: there is no such section; the text says where its keys are, or a close name.
    """
    from plugrl.core.config.canonical import MOVES, remedy
    from plugrl.core.config.schemas.describe import describe_read_section, describe_section
    from plugrl.core.config.schemas.sections import COMMON
    from plugrl.core.errors import UsageError
    from plugrl.core.wording import did_you_mean

    if name in COMMON:
        return describe_section(name) or []
    schemas = {t: own[name] for t, own in _trainers_sections().items() if name in own}
    if schemas:
        return describe_read_section(name, schemas)
    section, _, key = MOVES.get(name, "").partition(".")
    if key:
        hint = f"; its keys are those of {section}.{key}: see plugrl config schema {section} NAME"
    elif section:
        hint = f"; it is another name of {section}: see plugrl config schema section {section}"
    elif remedy((name,)):
        hint = f": {remedy((name,))}"
    else:
        hint = did_you_mean(name, _sections()) or "; see plugrl config schema section"
    raise UsageError(f"there is no section {name!r}{hint}")


@app.command("diff", epilog=examples(DIFF_EXAMPLES))
def diff(
    a: Annotated[str, typer.Argument(help="A YAML file, a recipe or a run folder.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    config_path: ConfigPath = None,
    reveal: Reveal = False,
    as_json: AsJson = False,
) -> None:
    """List the values in which two configurations differ, defaults included."""
    from plugrl.commands._output import emit_table
    from plugrl.core.config.sources.origins import dotted

    both = [_prepare(each, None, config_path) for each in (a, b)]
    left, right = (dict(_leaves(each.validated.tree)) for each in both)
    # What is hidden may differ too, and is then a row of two marks.
    shown = [dict(_leaves(each.validated.tree if reveal else _public(each))) for each in both]
    missing = object()
    rows: list[dict[str, Any]] = []
    for path in dict.fromkeys([*left, *right]):
        mine, other = left.get(path, missing), right.get(path, missing)
        if mine is missing or other is missing or mine != other:
            sides = {
                side: ("(absent)" if value is missing else _format_value(values[path]))
                for side, value, values in (("a", mine, shown[0]), ("b", other, shown[1]))
            }
            rows.append({"key": dotted(path), **sides})
    if as_json or a == b:
        emit_table(rows, ("key", "a", "b"), as_json=as_json)
        return
    emit_table([{"key": row["key"], a: row["a"], b: row["b"]} for row in rows], ("key", a, b))


def _prepare(
    config: str, overrides: list[str] | None, config_path: list[Path] | None
) -> Experiment:
    from plugrl.core.experiment import prepare

    inside = Path(config) / "config.yaml"
    source = str(inside) if inside.is_file() else config
    return prepare(source, overrides or (), config_path=config_path or (), preflight=False)


def _public(experiment: Experiment) -> dict[str, Any]:
    """The configuration as runs keep it for people: without what stays on the machine."""
    from plugrl.core.config.hidden import withhold

    composed = experiment.composed
    written = composed.tree if composed.references else {}
    return withhold(experiment.validated.tree, composed.references, written)[0]


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[Any, Any]]:
    """Give the values that hold no others; an empty mapping or list is one."""
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, (*path, i))]
    return [(path, value)]


def _format_value(value: Any) -> str:
    """Write a value as it would stand in a YAML file."""
    import json

    if isinstance(value, str) and value and value == value.strip() and "\n" not in value:
        from plugrl.core.config.sources.reader import plain_scalar

        if isinstance(plain_scalar(value), str):
            return value
    return json.dumps(value, ensure_ascii=False)
