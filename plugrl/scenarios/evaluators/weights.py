"""Rows of a list that are added up with weights: their names, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plugrl.core.errors import ConfigError


def check_row(row: Any, kind: str, use: str) -> None:
    """Refuse a row without its component, or with a name that metrics cannot have.

    Raises:
        ConfigError: it is one.
    """
    if getattr(row, kind) is None:
        raise ConfigError(f"{kind} is missing; name what {use}")
    if (not row.name and row.name is not None) or "/" in (row.name or ""):
        raise ConfigError(f"name {row.name!r} must be a word without slashes")


def check_rows(setting: str, rows: Sequence[Any], kind: str, *, normalize: bool) -> None:
    """Refuse a list that is empty, has a name twice, or weights whose sum cannot be divided by.

    Raises:
        ConfigError: it is one.
    """
    names = names_of(rows, kind)
    if not names:
        raise ConfigError(f"{setting} is empty; name at least one {kind} with its weight")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two {setting} are named {twice!r}; give one another name")
    if normalize and sum(weights_of(rows)) <= 0:
        raise ConfigError("the weights add up to nothing above 0, so that normalize=true fails")


def names_of(rows: Iterable[Any], kind: str) -> list[str]:
    """What metrics call the rows: their names, or the types of their components."""
    plain = [_plain(row) for row in rows]
    return [row.get("name") or _type_of(row[kind], kind) for row in plain]


def weights_of(rows: Iterable[Any]) -> list[float]:
    """The weights of the rows."""
    return [float(_plain(row)["weight"]) for row in rows]


def _plain(row: Any) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else vars(row)


def _type_of(section: Any, kind: str) -> str:
    if not isinstance(section, Mapping):
        return str(section or kind)
    name = section.get("type") or section.get(f"custom_{kind}_class_name") or kind
    return str(name).rpartition("/")[2]
