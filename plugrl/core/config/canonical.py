"""Keys and values brought from the spellings of the table of aliases to plugrl's own.

Most keys move in each layer before layers are merged, so that precedence does not depend on the
spelling. What may stand in two places that refer to each other is settled when all is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from plugrl.core.config.aliases import COMPONENT_NAMES, KEYS, Key
from plugrl.core.config.sources.merge import Indexed, Layer
from plugrl.core.config.sources.origins import (
    Fault,
    KeyPath,
    Origins,
    as_written,
    bare_name,
    dotted,
    fault_at,
    forget,
    mark,
    move,
    nearest,
)
from plugrl.core.errors import PlugrlDeprecationWarning

_RED_TEAM, _ALGORITHM = "red_team", "trainer.algorithm."
_ONE_PLACE = "write it in one place only"


#: The keys that move in every layer, and where to.
MOVES: dict[str, str] = {
    key.old: key.new for key in KEYS if key.new and key.new != key.old and not key.both
}


def second_spellings(path: KeyPath) -> list[str]:
    """The keys of the section at ``path`` that mean keys of elsewhere."""
    split = (old.rpartition(".") for old in MOVES)
    return [key for section, _, key in split if section == dotted(path)]


def remedy(path: KeyPath, known: Collection[str] = ()) -> str | None:
    """Say why there is no key ``path`` and what to write instead; ``None``: nothing is known.

    ``known`` are the keys that its section has.
    """
    if path[:1] == ("models",) and len(path) > 2:
        path = ("models", "*", *path[2:])
    rows = (key for key in KEYS if key.instead and key.old == dotted(path))
    return next((row.instead for row in rows if row.beside is None or row.beside in known), None)


def component_name(kind: str, name: str) -> str:
    """Give plugrl's own name for another spelling of a component's name."""
    return COMPONENT_NAMES.get(kind, {}).get(name, name)


def warn_of_renamed(old: KeyPath, new: str) -> None:
    """Warn of a key that goes away."""
    message = f"{dotted(old)} is now called {new}; write {new}"
    warnings.warn(message, PlugrlDeprecationWarning, stacklevel=3)


def canonical(
    layer: Layer, faults: list[Fault], prefix: KeyPath = (), below: dict[str, Any] | None = None
) -> None:
    """Rewrite the second spellings of one layer in place.

    The same thing written in both spellings is a fault. Where there is a section ``red_team``, the
    section ``trainer.algorithm`` is a component with keys of its own.

    Args:
        layer: whose keys move.
        faults: gets what is wrong.
        prefix: where the configuration begins in the layer.
        below: what the layer is merged over.
    """
    root = _look(layer.tree, prefix)
    if not isinstance(root, dict):
        return
    own = any(
        _look(tree, (*place, _RED_TEAM)) is not None
        for tree in (layer.tree, below or {})
        for place in (prefix, ())
    )
    for key in KEYS:
        path = (*prefix, *key.old.split("."))
        parent = _look(layer.tree, path[:-1])
        if key.both or not isinstance(parent, dict) or path[-1] not in parent:
            continue
        if own and key.old.startswith(_ALGORITHM):
            continue
        value = parent[str(path[-1])]
        if any(type(value) is type(known) and value == known for known in key.drop):
            _take(layer, path, len(prefix))
            forget(path, layer.origins)
        elif key.new == key.old and isinstance(key.value, dict) and isinstance(value, str):
            parent[str(path[-1])] = key.value.get(value, value)
        elif key.old in MOVES:
            _move(layer, key, path, (*prefix, *MOVES[key.old].split(".")), faults, len(prefix))
    phases = _look(root, ("trainer", "phases"))
    if isinstance(phases, (list, Indexed)):
        for index in range(len(phases)) if isinstance(phases, list) else list(phases):
            canonical(layer, faults, (*prefix, "trainer", "phases", index), below)


def settle(
    layer: Layer,
    faults: list[Fault],
    reads: frozenset[str],
    has: Callable[[KeyPath], bool] = lambda _: False,
) -> None:
    """Bring what may stand in two places to the one that is read.

    Args:
        layer: all layers merged, without references; changed in place.
        faults: gets what is wrong.
        reads: the sections that are read.
        has: whether a component of the user's own has a key.
    """
    for key in KEYS:
        old: KeyPath = tuple(key.old.split("."))
        new: KeyPath = tuple(str(key.new).split("."))
        written = old[-1] in _mapping(_look(layer.tree, old[:-1]))
        if key.both and new[0] in reads and written and not (key.own and has(old)):
            _move(layer, key, old, new, faults, 0 if old[0] == "service" else 1)
    models = _mapping(layer.tree.get("models")) if "models" in reads else {}
    for name, model in models.items():
        train, path = _mapping(_mapping(model).get("train")), ("models", name, "train")
        known = {"betas", "custom_train_service_module_path"}
        if {"beta1", "beta2"} <= train.keys() and not known & train.keys():
            # Two numbers of an optimizer, each with a key of its own, are one list.
            train["betas"] = [train.pop("beta1"), train.pop("beta2")]
            move(layer.origins, (*path, "beta1"), (*path, "betas", 0))
            move(layer.origins, (*path, "beta2"), (*path, "betas", 1))


def _look(tree: Any, path: KeyPath) -> Any:
    """What is at ``path``; overrides write the number of an item as text."""
    for part in path:
        if isinstance(tree, list) and str(part).isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            return None
    return tree


def _take(layer: Layer, path: KeyPath, keep: int = 0) -> Any:
    """Take what is at ``path`` out, with the mappings around it that this leaves empty."""
    parent = _look(layer.tree, path[:-1])
    value = parent.pop(path[-1])
    if not parent and len(path) > keep + 1:
        _take(layer, path[:-1], keep)
        layer.origins.pop(path[:-1], None)
    return value


def _move(
    layer: Layer, key: Key, old: KeyPath, new: KeyPath, faults: list[Fault], keep: int
) -> None:
    """Move the value at ``old`` to ``new``; null says nothing where the other has a value."""
    origin, found = nearest(layer.origins, old), layer.origins.get(old)
    name = (found.key if found is not None else None) or as_written(old)
    value = written = _take(layer, old, keep)
    try:
        if callable(key.value):
            value = key.value(written)
        if key.both == "merged":
            by_type(value, old, layer.origins)
        if "*" in new:
            new = _of_the_one_model(layer, new)
        target = _opened(layer, new[:-1])
        held = target.get(str(new[-1])) if target is not None else None
        if target is None or (held is not None and written is None):
            return
        if held is not None:
            _unite(layer, key, old, value, new, held, faults)
            return
    except ValueError as error:
        faults.append(Fault(name, origin, str(error)))
        return
    for sibling in key.replaces if value is not None else ():
        target.pop(sibling, None)
    target[str(new[-1])] = value
    if callable(key.value) and origin is not None:
        # Its inner keys are other ones now; the key that was written stands for them all.
        forget(old, layer.origins)
        mark(value, new, replace(origin, key=name), layer.origins)
    else:
        move(layer.origins, old, new)
    if key.warns:
        warn_of_renamed(old, str(key.new))


def _of_the_one_model(layer: Layer, path: KeyPath) -> KeyPath:
    models = layer.tree.setdefault("models", {"policy": {}})
    if not isinstance(models, dict) or len(models) != 1:
        names = ", ".join(_mapping(models)) or "none is named"
        instead = dotted(path).replace("*", "NAME")
        raise ValueError(f"fits one model only ({names}); write {instead} instead")
    return tuple(next(iter(models)) if part == "*" else part for part in path)


def _unite(
    layer: Layer, key: Key, old: KeyPath, value: Any, new: KeyPath, held: Any, faults: list[Fault]
) -> None:
    """Let two spellings of one thing say together what they say in two layers."""
    place = nearest(layer.origins, new)
    if key.both == "equal":
        if held != value:
            raise ValueError(
                f"differs from {as_written(new)}, {held} ({place}); write it once, there"
            )
        return
    if _number(layer.origins, old) == _number(layer.origins, new):
        raise ValueError(f"is the same as {as_written(new)} ({place}); {_ONE_PLACE}")
    held = _opened(layer, new)
    if held is None:
        return  # It is no mapping, as its schema will say.
    by_type(held, new, layer.origins)
    for name, item in _mapping(value).items():
        here, there = (*old, name), (*new, name)
        mine, other = _number(layer.origins, here), _number(layer.origins, there)
        if name in held and mine == other:
            place = nearest(layer.origins, there)
            message = f"is the same as {dotted(there)} ({place}); {_ONE_PLACE}"
            faults.append(fault_at(layer.origins, here, message))
        elif name not in held or mine > other:
            held[name] = item
            forget(there, layer.origins)
            move(layer.origins, here, there)


def by_type(service: Any, path: KeyPath, origins: Origins) -> None:
    """Let ``backend``, the other name of ``type``, be the type; of both, the later layer counts."""
    if not isinstance(service, dict) or "backend" not in service:
        return
    old, new = (*path, "backend"), (*path, "type")
    ahead = _number(origins, old) - _number(origins, new)
    if "type" not in service or ahead > 0:
        service["type"] = service.pop("backend")
        forget(new, origins)
        move(origins, old, new)
    elif ahead < 0:
        del service["backend"]
        forget(old, origins)


def _number(origins: Origins, path: KeyPath) -> int:
    origin = nearest(origins, path)
    return -1 if origin is None else origin.layer


def _mapping(value: Any) -> dict[str, Any]:
    return {"type": value} if isinstance(value, str) else value if isinstance(value, dict) else {}


def _opened(layer: Layer, path: KeyPath) -> dict[str, Any] | None:
    """Give the mapping at ``path``, made when it is absent; a bare name becomes its ``type``."""
    node: Any = layer.tree
    for depth, part in enumerate(path):
        if isinstance(part, int):
            node = node[part]
            continue
        inner = node.get(part) if isinstance(node, dict) else node
        if inner is None:
            inner = node[part] = {}
        elif isinstance(inner, str):
            inner = node[part] = {"type": inner}
            bare_name(layer.origins, path[: depth + 1])
        node = inner
    return node if isinstance(node, dict) else None
