"""Deep merging of configuration layers that keeps where each value came from."""

from __future__ import annotations

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

    A bare name stands for ``{type: name}`` where it meets a mapping, on either side.
    A mapping whose keys are indexes changes single items of a list; only overrides write those.
    """
    for key, value in over.tree.items():
        if value is None and base.tree.get(key) is not None:
            base.removed.add(key)
        elif value is not None:
            base.removed.discard(key)
        here = (key,)
        base.tree[key] = _merged(base, over, base.tree.get(key), value, here, here, faults)


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
    if isinstance(new, Indexed):
        if isinstance(old, list):
            return _merge_items(base, over, old, new, path, source, faults)
        new = dict(new)
    if isinstance(new, dict) and isinstance(old, str) and old and "type" not in new:
        bare_name(base.origins, path)
        old = {"type": old}
    if isinstance(new, str) and new and isinstance(old, dict):
        bare_name(over.origins, source)
        new = {"type": new}
    if isinstance(new, dict) and isinstance(old, dict):
        _note(base, over, path, source)
        for key, value in new.items():
            old[key] = _merged(
                base, over, old.get(key), value, (*path, key), (*source, key), faults
            )
        return old
    forget(path, base.origins)
    for known, origin in over.origins.items():
        if known[: len(source)] == source:
            base.origins[path + known[len(source) :]] = origin
    found = nearest(over.origins, source)
    if path not in base.origins and found is not None:
        base.origins[path] = found
    return _plain(new)


class Indexed(dict[str, Any]):
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
