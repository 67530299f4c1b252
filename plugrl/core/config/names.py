"""Settings that name what is defined elsewhere, such as a model or a column, and their look-up."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin

from plugrl.core.config.check import hints_of
from plugrl.core.config.schemas.schema import COMPONENT, NAMES
from plugrl.core.wording import did_you_mean

#: What is looked up in problems, by whoever reads the data.
COLUMNS = ("column", "optional column")
#: What messages call a task that is no name but a file of the user.
OF_FILE = "of the file"


class Name(NamedTuple):
    """A setting that names something: its path, the kind of thing, and the name."""

    path: str
    kind: str
    name: str


def names_in(hint: Any, value: Any, path: str) -> Iterator[Name]:
    """What a value names by the fields that :func:`~.schema.described` declares so.

    Components within it have a section and a schema of their own, and are left out.

    Args:
        hint: a dataclass, or a list, mapping or union of some; others name nothing.
        value: by that hint, with the defaults filled in.
        path: where it stands.
    """
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        for field in dataclasses.fields(hint) if isinstance(value, Mapping) else ():
            given, here = value.get(field.name), f"{path}.{field.name}"
            kind = field.metadata.get(NAMES)
            if kind is not None:
                if kind != "optional column" or given != field.default:
                    yield from (Name(where, kind, name) for where, name in _strings(given, here))
            elif COMPONENT not in field.metadata:
                yield from names_in(hints_of(hint)[field.name], given, here)
    elif get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from names_in(member, value, path)
    elif get_origin(hint) is dict and isinstance(value, Mapping):
        for key, item in value.items():
            yield from names_in(get_args(hint)[1], item, f"{path}.{key}")
    elif get_origin(hint) is list and isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from names_in(get_args(hint)[0], item, f"{path}[{number}]")


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each name in the value of a field, with its path; a key with a dot has its mapping's."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _strings(item, f"{path}[{number}]")
    elif isinstance(value, Mapping):
        by_value = all(isinstance(item, str) for item in value.values())
        for key, item in value.items():
            yield path if "." in key else f"{path}.{key}", item if by_value else key


def columns_in(component: Any, section: Any, path: str) -> dict[str, str]:
    """The columns that a component's section names by declared fields, by their settings."""
    found = names_in(getattr(component, "Config", None), section, path)
    return {each.path: each.name for each in found if each.kind in COLUMNS}


def model_fault(models: Collection[str], name: str) -> str | None:
    """Why there is no such entry of ``models``; None: there is."""
    if name in models:
        return None
    has, close = ", ".join(models) or "none", did_you_mean(name, models, 1)
    return f"no model {name!r} in models; it has: {has}{close}"


def split_fault(
    name: str, splits: Collection[str], task: str | None, remedy: str = ""
) -> str | None:
    """Why a scenario has no such split; None: it has. A ``remedy`` is for want of a close name."""
    if name in splits:
        return None
    known, close = ", ".join(sorted(splits)) or "none", did_you_mean(name, splits, 1)
    return f"scenario {task or OF_FILE!r} has no split {name!r}; it has: {known}{close or remedy}"


def agent_fault(name: str, agents: Collection[str]) -> str | None:
    """Why the environment or protocol has no such agent; None: it has."""
    if name in agents:
        return None
    return (
        f"there is no agent {name!r}; there are: {', '.join(agents)}{did_you_mean(name, agents, 1)}"
    )
