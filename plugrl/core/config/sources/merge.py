"""Values over others: layers of a configuration, and entries that change a default entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugrl.core.config.sources.origins import (
    Fault,
    KeyPath,
    Origins,
    bare_name,
    dotted,
    forget,
    nearest,
)

#: A text that is another key's value and nothing else; what comes from the environment is text.
REFERENCE = re.compile(r"\$\{\s*(?!env\.)([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*)\s*\}")


@dataclass
class Layer:
    """One source of values: a file, the command line or a Python mapping.

    ``removed`` names the sections that a layer below wrote and that are null now.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)


def merge(base: Layer, over: Layer, faults: list[Fault]) -> None:
    """Merge ``over`` into ``base``: mappings key by key, everything else replaces.

    A bare name stands for ``{type: name}`` where it meets a mapping, on either side. A reference
    such as ``${a.b}`` is a value that is not known yet: it replaces a mapping and is replaced by
    one, and an override of a key below it is a fault.
    A mapping whose keys are indexes changes single items of a list; only overrides write those.
    """
    for key, value in over.tree.items():
        if value is None and base.tree.get(key) is not None:
            base.removed.add(key)
        elif value is not None:
            base.removed.discard(key)
        here = (key,)
        base.tree[key] = _merged(base, over, base.tree.get(key), value, here, here, faults)


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The paths of a value at ``path`` and of all that is in it."""
    yield path
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from _paths(item, (*path, key))


def _merged(
    base: Layer,
    over: Layer,
    old: Any,
    new: Any,
    path: KeyPath,
    source: KeyPath,
    faults: list[Fault],
) -> Any:
    """Give what ``new`` (at ``source`` in ``over``) makes of ``old`` (at ``path`` in ``base``)."""
    if isinstance(new, Below) and (referred := _referred(old)):
        key = dotted((*path, next(iter(new))))
        message = (
            f"{dotted(path)} refers to {referred}, so that no key below it can be set; "
            f"write {dotted(path)}={{...}} with all of its keys, or set keys of {referred}"
        )
        faults.append(Fault(key, nearest(over.origins, source), message))
        return old
    if isinstance(new, Indexed):
        if isinstance(old, list):
            return _merge_items(base, over, old, new, path, source, faults)
        new = dict(new)
    if isinstance(new, dict) and isinstance(old, str) and old and "type" not in new:
        if _referred(old):
            old = None
        else:
            bare_name(base.origins, path)
            old = {"type": old}
    if isinstance(new, str) and new and isinstance(old, dict) and not _referred(new):
        bare_name(over.origins, source)
        new = {"type": new}
    if isinstance(new, dict) and isinstance(old, dict):
        _note(base, over, path, source)
        for key, value in new.items():
            old[key] = _merged(
                base, over, old.get(key), value, (*path, key), (*source, key), faults
            )
        return old
    if isinstance(old, (dict, list)):
        forget(path, base.origins)
    else:
        base.origins.pop(path, None)
    # Only what is there is asked for: a scan for each key would take minutes for thousands.
    for known in _paths(new, source):
        if known in over.origins:
            base.origins[path + known[len(source) :]] = over.origins[known]
    found = nearest(over.origins, source)
    if path not in base.origins and found is not None:
        base.origins[path] = found
    return _plain(new)


def _referred(value: Any) -> str | None:
    """The key that a value is a reference to and nothing else."""
    found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else None


class Below(dict[str, Any]):
    """A mapping with the one key that the key of an override goes on with: ``b`` of ``a.b=1``."""


class Indexed(Below):
    """A mapping that an override wrote with list indexes as its keys."""


def _merge_items(
    base: Layer,
    over: Layer,
    old: list[Any],
    new: Indexed,
    path: KeyPath,
    source: KeyPath,
    faults: list[Fault],
) -> list[Any]:
    for key, value in new.items():
        index = int(key)
        if index >= len(old):
            origin = nearest(over.origins, (*source, key))
            size = "1 item" if len(old) == 1 else f"{len(old)} items"
            faults.append(
                Fault(dotted((*path, index)), origin, f"no such item; the list has {size}, from 0")
            )
            continue
        old[index] = _merged(base, over, old[index], value, (*path, index), (*source, key), faults)
    return old


def _note(base: Layer, over: Layer, path: KeyPath, source: KeyPath) -> None:
    origin = over.origins.get(source)
    if origin is not None and path not in base.origins:
        base.origins[path] = origin


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


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
