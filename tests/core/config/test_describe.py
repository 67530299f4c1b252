"""The rows that people read of a schema: keys, types, defaults, and what each option is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from plugrl.core.config.coerce import type_name
from plugrl.core.config.schemas.describe import (
    describe,
    describe_component,
    describe_read_section,
    describe_section,
)
from plugrl.core.config.schemas.schema import component, described, phases
from plugrl.core.plugins.registry import default_registry


@dataclass
class Inner:
    depth: int = described(2, "how deep")


@dataclass
class Outer:
    needed: str
    bare: float = 0.5
    names: list[str] = described(["a"], "names")
    inner: Inner = described(Inner, "never shown: its keys are")
    perhaps: Inner | None = described(None, "what it is for")
    one: Any = component("loss", "clipped", help="which loss")
    absent: Any = component("scorer", help="which scorer")
    many: Any = component("loss", many=True, help="which losses")
    stages: list[int] = phases("one after the other")
    hidden: int = field(default=1, init=False)


def row(key, kind, default, help="", required=False):
    return {"key": key, "type": kind, "default": default, "help": help, "required": required}


ROWS = [
    row("needed", "str", None, required=True),
    row("bare", "float", 0.5),
    row("names", "list[str]", ["a"], "names"),
    row("inner.depth", "int", 2, "how deep"),
    row("perhaps", "mapping | null", None, "what it is for"),
    row("perhaps.depth", "int", 2, "how deep"),
    row("one", "loss", "clipped", "which loss"),
    row("absent", "scorer", None, "which scorer"),
    row("many", "list of loss", [], "which losses"),
    row("stages", "list[int]", [], "one after the other"),
]
FREE = "free keys for a subclass's own options (no schema describes them)"


class WithConfig:
    Config = Outer


class Heir(WithConfig):
    """Has no Config of its own."""


class Text:
    Config = "no schema"


class Number:
    Config = int


class Instance:
    Config = Inner()


def test_every_field_that_can_be_written_has_a_row():
    assert describe(Outer) == ROWS


@pytest.mark.parametrize(
    ("component", "rows"),
    [
        *((WithConfig, ROWS), (Heir, [*ROWS, row("algorithm.*", "any", None, FREE)])),
        *((each, []) for each in (len, Text, Number, Instance)),
    ],
)
def test_a_component_has_the_rows_of_its_schema_and_none_without(component, rows):
    assert describe_component(component) == rows


def test_sections_at_the_root():
    assert describe_section("no_such_section") is None
    (seed,) = describe_section("seed")
    assert (seed["key"], seed["type"]) == ("seed", "int")
    assert {each["key"].partition(".")[0] for each in describe_section("models")} == {"NAME"}
    assert "batch_size" in {each["key"] for each in describe_section("data")}
    assert describe_section("rollout_worker")[0]["key"] == "type"


@dataclass
class Other(Inner):
    depth: int = described(3, "how deep")
    width: int = described(1, "how wide")


def test_a_section_that_trainers_read_by_schemas_of_their_own():
    assert describe_read_section("inner", {"a": Inner, "b": Inner}) == describe(Inner)
    assert describe_read_section("inner", {"a": Inner, "b": Other, "c": Other}) == [
        {**row("depth", "int", 2, "how deep"), "trainers": ["a"]},
        {**row("depth", "int", 3, "how deep"), "trainers": ["b", "c"]},
        {**row("width", "int", 1, "how wide"), "trainers": ["b", "c"]},
    ]
    assert describe_read_section("inner", {"a": Inner, "b": Inner, "c": Other})[0]["trainers"] == [
        "a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (Literal["string", "list"] | None, "string | list | null"),
        (bool | Literal["auto"], "bool | auto"),
        (dict[str, list[int] | None], "dict[str, list[int] | null]"),
        (list[Any], "list[any]"),
        (Literal["a", "b"], "a, b"),
    ],
)
def test_types_are_written_for_people(hint, name):
    assert type_name(hint) == name


def test_free_keys_are_of_subclasses_of_others():
    registry = default_registry()
    for kind, name in (("sandbox", "local"), ("parser", "json")):
        keys = [each["key"] for each in describe_component(registry.get(kind, name))]
        assert "algorithm.*" not in keys, name
