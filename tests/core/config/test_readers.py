"""Every key of a schema is read somewhere: one that nothing reads promises what nothing does."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import plugrl
from plugrl.core.config.check import hints_of
from plugrl.core.config.sections import COMMON, TEXT
from plugrl.core.registry import default_registry

PACKAGE = Path(plugrl.__file__).parent

#: Keys that no line of the package names, and why they are there all the same.
UNREAD = {
    "RegexConfig.dotall": "read by the name of the flag that it sets",
    "RegexConfig.multiline": "read by the name of the flag that it sets",
    "RegexScorerConfig.dotall": "read by the name of the flag that it sets",
    "RegexScorerConfig.multiline": "read by the name of the flag that it sets",
    "TrajectoryPoolConfig.type": "there is one pool; the key is checked to name it",
    "WeightConfig.type": "there is one controller; the key is checked to name it",
}


def schemas() -> dict[str, type]:
    """Every dataclass of the sections and of the built-in components, nested ones included."""
    found: dict[str, type] = {}
    waiting: list[Any] = [*COMMON.values(), *TEXT.values()]
    registry = default_registry()
    for record in registry.records():
        if record.distribution == "plugrl":
            waiting.append(getattr(registry.load(record), "Config", None))
    while waiting:
        hint = waiting.pop()
        waiting.extend(get_args(hint))
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            if hint.__name__ not in found:
                waiting.extend(hints_of(hint).values())
            found[hint.__name__] = hint
    return found


def names_read() -> set[str]:
    """Names that some code of the package reads: attributes, and texts in ``[]`` and ``get``.

    The rules of a schema are left out: checking a value is no use of it.
    """
    names: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in _outside_rules(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                names.add(str(node.slice.value))
            elif isinstance(node, ast.Call) and _name(node.func) in ("get", "getattr"):
                names.update(str(a.value) for a in node.args if isinstance(a, ast.Constant))
    return names


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _outside_rules(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name == "__post_init__":
            continue
        yield child
        yield from _outside_rules(child)


READ = names_read()
FIELDS = sorted(
    f"{name}.{field.name}"
    for name, schema in schemas().items()
    for field in dataclasses.fields(schema)
)


def test_the_schemas_are_found():
    expected = {
        "SettingsConfig.deadline",
        "ModelSourceConfig.dtype",
        "ValidationDataConfig.limit",
        "GrpoConfig.epsilon",
        "ScheduleConfig.decay",
    }
    assert expected <= set(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_a_key_has_a_reader(field):
    if field in UNREAD:
        assert UNREAD[field]
        return
    assert field.partition(".")[2] in READ


def test_the_list_of_unread_keys_is_honest():
    assert set(UNREAD) <= set(FIELDS)
    # Only such keys whose name nothing else uses can be shown to be unread.
    assert "dotall" not in READ
