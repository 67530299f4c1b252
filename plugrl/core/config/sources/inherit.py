"""Mappings in which one entry has the values that the others change.

A schema says so with a class attribute ``default_entry``, the name of that entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.core.config.sources.origins import KeyPath, Origins


def default_entry(schema: Any, entries: Mapping[str, Any]) -> str | None:
    """The name of the entry that others begin with; None: there is none."""
    name = getattr(schema, "default_entry", None)
    return name if name in entries else None


def inherit(default: Any, entry: Any) -> Any:
    """``default``, changed by what ``entry`` says.

    Mappings change key by key. One that picks another component takes the place of the default.
    """
    if isinstance(default, Mapping) and isinstance(entry, str) and "type" in default:
        entry = {"type": entry}
    if not isinstance(default, Mapping) or not isinstance(entry, Mapping):
        return entry
    if any(default.get(key) != value for key, value in entry.items() if _picks(key)):
        return dict(entry)
    changed = {key: inherit(default[key], value) for key, value in entry.items() if key in default}
    return {**default, **entry, **changed}


def _picks(key: str) -> bool:
    return key == "type" or key.startswith("custom_")


def inherit_origins(origins: Origins, default: KeyPath, entry: KeyPath) -> None:
    """Note where an entry's values were written that it has from the default."""
    size = len(default)
    for path, origin in list(origins.items()):
        if len(path) > size and path[:size] == default:
            origins.setdefault(entry + path[size:], origin)
