"""All schemas that plugrl brings, for tests of what each of their fields has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

from plugrl.core.config.check import hints_of
from plugrl.core.config.schemas.sections import COMMON, TEXT
from plugrl.core.plugins.registry import default_registry


def roots() -> Iterator[tuple[str, Any, Any]]:
    """Section or kind, the hint of its schema, and the component that has it, if any."""
    for section, hint in [*COMMON.items(), *TEXT.items()]:
        yield section, hint, None
    registry = default_registry()
    for record in registry.records():
        if record.distribution == "plugrl":
            component = registry.load(record)
            yield record.kind, getattr(component, "Config", None), component


def trainer_sections() -> Iterator[tuple[str, Any]]:
    """Each section that a trainer reads, with the hint of its schema."""
    registry = default_registry()
    for record in registry.records("trainer"):
        if record.distribution == "plugrl":
            yield from registry.load(record).sections.items()


def schemas_in(hint: Any, found: set[type]) -> set[type]:
    """The dataclasses that a hint names, nested ones included."""
    for argument in get_args(hint):
        schemas_in(argument, found)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in found:
        found.add(hint)
        for nested in hints_of(hint).values():
            schemas_in(nested, found)
    return found


def all_schemas() -> list[type]:
    """Every schema, by module and name."""
    from plugrl.core.text.agents.agent_config import AgentSection

    found = schemas_in(AgentSection, set())
    for _, hint, _ in roots():
        schemas_in(hint, found)
    for _, hint in trainer_sections():
        schemas_in(hint, found)
    return sorted(found, key=lambda schema: (schema.__module__, schema.__qualname__))
