"""A schema as rows for people: keys, types, defaults and help."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from plugrl.core.config.check import hints_of
from plugrl.core.config.coerce import type_name
from plugrl.core.config.schemas.schema import BOUNDS, COMPONENT, HELP, takes_free_keys, to_plain
from plugrl.core.config.schemas.sections import COMMON, DEFAULTS, TEXT


def describe_component(obj: Any) -> list[dict[str, Any]]:
    """Give one row for each key that the ``Config`` of a component has, nested ones dotted."""
    schema = getattr(obj, "Config", None)
    if not (isinstance(schema, type) and dataclasses.is_dataclass(schema)):
        return []
    rows = describe(schema)
    if takes_free_keys(obj):
        text = "free keys for a subclass's own options (no schema describes them)"
        rows.append(_row("algorithm.*", "any", None, text, False))
    return rows


def describe_section(name: str) -> list[dict[str, Any]] | None:
    """Give the rows of a root section, or ``None`` when there is no section of this name."""
    sections = {**COMMON, **TEXT}
    return _describe_schema(name, sections[name]) if name in sections else None


def describe_read_section(name: str, schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the rows of a section that trainers read, each by a schema of its own.

    Args:
        name: of the section.
        schemas: of the section, by the name of the trainer that reads it.

    Where schemas differ, each row has ``trainers``: a list of those that
    read it so, or of ``all``.
    """
    rows: list[dict[str, Any]] = []
    readers: list[list[str]] = []
    for trainer, schema in schemas.items():
        for row in _describe_schema(name, schema):
            if row not in rows:
                after = [i for i, known in enumerate(rows) if known["key"] == row["key"]]
                at = after[-1] + 1 if after else len(rows)
                rows.insert(at, row)
                readers.insert(at, [])
            readers[rows.index(row)].append(trainer)
    if all(len(names) == len(schemas) for names in readers):
        return rows
    return [
        {**row, "trainers": ["all"] if len(names) == len(schemas) else names}
        for row, names in zip(rows, readers, strict=True)
    ]


def _describe_schema(name: str, schema: Any) -> list[dict[str, Any]]:
    if dataclasses.is_dataclass(schema) and isinstance(schema, type):
        return describe(schema)
    if isinstance(schema, dataclasses.Field):
        text = schema.metadata.get(HELP, "")
        return [_row("type", schema.metadata[COMPONENT], _default(schema), text, False)]
    inner = getattr(schema, "__args__", (None,))[-1]
    if dataclasses.is_dataclass(inner) and isinstance(inner, type):
        return describe(inner, "NAME.")
    return [_row(name, type_name(schema), DEFAULTS.get(name), "", False)]


def describe(schema: type, prefix: str = "") -> list[dict[str, Any]]:
    """Give the rows of a dataclass."""
    rows: list[dict[str, Any]] = []
    hints = hints_of(schema)
    for field in dataclasses.fields(schema):
        if not field.init:
            continue
        hint, key = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            rows.extend(describe(hint, f"{key}."))
            continue
        optional = _optional(hint)
        if optional is not None:
            rows.append(_row(key, "mapping | null", None, field.metadata.get(HELP, ""), False))
            rows.extend(describe(optional, f"{key}."))
            continue
        kind = field.metadata.get(COMPONENT)
        many = kind is not None and field.default_factory is list
        name = (f"list of {kind}" if many else kind) if kind else type_name(hint)
        if BOUNDS in field.metadata:
            name = f"{name}, {field.metadata[BOUNDS]}"
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        rows.append(_row(key, name, _default(field), field.metadata.get(HELP, ""), required))
    return rows


def _optional(hint: Any) -> type | None:
    """The dataclass of a hint such as ``Section | None``."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    return next((m for m in members if dataclasses.is_dataclass(m) and isinstance(m, type)), None)


def _row(key: str, kind: str, default: Any, help: str, required: bool) -> dict[str, Any]:
    return {"key": key, "type": kind, "default": default, "required": required, "help": help}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return to_plain(field.default)
    if field.default_factory is not dataclasses.MISSING:
        made = to_plain(field.default_factory())
        single = COMPONENT in field.metadata and isinstance(made, dict)
        return made["type"] if single else made
    return None
