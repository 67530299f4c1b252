"""Keys and values brought from the spellings of the table of aliases to plugrl's own.

Most keys move in each layer before layers are merged, so that precedence does not depend on the
spelling. What may stand in two places that refer to each other is settled when all is known.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plugrl.core.config.aliases import COMPONENT_NAMES, KEYS, Key
from plugrl.core.config.merge import Indexed, Layer
from plugrl.core.config.origins import (
    Fault,
    KeyPath,
    as_written,
    bare_name,
    dotted,
    forget,
    mark,
    move,
    nearest,
)
from plugrl.core.errors import PlugrlDeprecationWarning

if TYPE_CHECKING:
    from plugrl.core.config.check import Checker

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


def remedy(path: KeyPath) -> str | None:
    """Say why there is no key ``path`` and what to write instead; ``None``: nothing is known."""
    if path[:1] == ("models",) and len(path) > 2:
        path = ("models", "*", *path[2:])
    return next((key.instead for key in KEYS if key.instead and key.old == dotted(path)), None)


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
    origin = nearest(layer.origins, old)
    found = layer.origins.get(old)
    name = (found.key if found is not None else None) or as_written(old)
    value = written = _take(layer, old, keep)
    if callable(key.value):
        try:
            value = key.value(written)
        except ValueError as error:
            faults.append(Fault(name, origin, str(error)))
            return
    target = _opened(layer, new[:-1])
    if written is None and target and new[-1] in target:
        return  # It says nothing.
    if target is None or new[-1] in target:
        other = nearest(layer.origins, new)
        message = f"is the same as {as_written(new)} ({other}); {_ONE_PLACE}"
        faults.append(Fault(name, origin, message))
        return
    target[str(new[-1])] = value
    if callable(key.value) and origin is not None:
        # Its inner keys are other ones now; the key that was written stands for them all.
        forget(old, layer.origins)
        mark(value, new, replace(origin, key=name), layer.origins)
    else:
        move(layer.origins, old, new)
    if key.warns:
        warn_of_renamed(old, str(key.new))


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


def settle(tree: dict[str, Any], checker: Checker, reads: frozenset[str]) -> None:
    """Bring what may stand in two places to the one that is read, in a tree without references.

    Args:
        tree: the values of all layers; changed in place.
        checker: has their origins, and gets what is wrong.
        reads: the sections that are read.
    """
    layer = Layer(tree, checker.origins)
    for key in KEYS:
        old = tuple(key.old.split("."))
        if not key.both or str(key.new).partition(".")[0] not in reads:
            continue
        own = key.own and f"custom_{old[0]}_module_path" in _mapping(tree.get(old[0]))
        if not own and old[-1] in _mapping(_look(tree, old[:-1])):
            _settle(layer, key, old, checker)
    if "models" in reads:
        for name, model in _mapping(tree.get("models")).items():
            _betas(model, ("models", name, "train"), checker)


def _settle(layer: Layer, key: Key, old: KeyPath, checker: Checker) -> None:
    value = _take(layer, old, 0 if old[0] == "service" else 1)
    new: KeyPath = tuple(str(key.new).split("."))
    if value is not None and callable(key.value):
        try:
            value = key.value(value)
        except ValueError as error:
            checker.fault(old, str(error))
            return
    if "*" in new:
        models = layer.tree.setdefault("models", {"policy": {}})
        if not isinstance(models, dict) or len(models) != 1:
            names = ", ".join(_mapping(models)) or "none is named"
            there = dotted(new).replace("*", "NAME")
            checker.fault(old, f"fits one model only ({names}); write {there} instead")
            return
        new = tuple(next(iter(models)) if part == "*" else part for part in new)
    target = _opened(layer, new[:-1])
    if target is None:
        return
    last = str(new[-1])
    held = target.get(last)
    if value is None and (key.replaces or held is not None):
        return  # It says nothing.
    where = nearest(checker.origins, new)
    if held is None:
        for sibling in key.replaces:
            target.pop(sibling, None)
        target[last] = value
        move(checker.origins, old, new)
        _by_type(value, new, checker)
    elif key.both == "equal":
        if held != value:
            message = f"differs from {dotted(new)}, {held} ({where}); write it once, there"
            checker.fault(old, message)
    elif _layer(checker, old) == _layer(checker, new):
        checker.fault(old, f"is the same as {dotted(new)} ({where}); {_ONE_PLACE}")
    elif isinstance(held, (dict, str)):
        _by_type(value, old, checker)
        _by_type(held, new, checker)
        target[last] = _united(checker, value, old, held, new)


def _mapping(value: Any) -> dict[str, Any]:
    return {"type": value} if isinstance(value, str) else value if isinstance(value, dict) else {}


def _layer(checker: Checker, path: KeyPath) -> int:
    origin = nearest(checker.origins, path)
    return -1 if origin is None else origin.layer


def _by_type(service: Any, path: KeyPath, checker: Checker) -> None:
    """Let ``backend``, the other name of ``type``, be the type where a later layer wrote it."""
    if not isinstance(service, dict) or "backend" not in service:
        return
    old, new = (*path, "backend"), (*path, "type")
    if "type" not in service or _layer(checker, old) > _layer(checker, new):
        service["type"] = service.pop("backend")
        forget(new, checker.origins)
        move(checker.origins, old, new)


def _united(checker: Checker, here: Any, path: KeyPath, there: Any, new: KeyPath) -> Any:
    """What two spellings of one mapping say together: of a key in both, the later layer counts."""
    second = _mapping(there)
    for key, value in _mapping(here).items():
        old, into = (*path, key), (*new, key)
        mine, other = _layer(checker, old), _layer(checker, into)
        if key in second and mine == other:
            where = nearest(checker.origins, into)
            checker.fault(old, f"is the same as {dotted(into)} ({where}); {_ONE_PLACE}")
        elif key not in second or mine > other:
            second[key] = value
            forget(into, checker.origins)
            move(checker.origins, old, into)
    return second


def _betas(model: Any, path: KeyPath, checker: Checker) -> None:
    """Two numbers of an optimizer, each with a key of its own, as one list."""
    train = _mapping(model).get("train")
    known = {"custom_train_service_module_path", "betas"}
    if (
        not isinstance(train, dict)
        or known & train.keys()
        or not {"beta1", "beta2"} <= train.keys()
    ):
        return
    train["betas"] = [train.pop("beta1"), train.pop("beta2")]
    for index, key in enumerate(("beta1", "beta2")):
        move(checker.origins, (*path, key), (*path, "betas", index))
