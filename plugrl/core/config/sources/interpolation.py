"""``${...}`` in values: other keys and environment variables, resolved by OmegaConf."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from plugrl.core.config.canonical import MOVES
from plugrl.core.config.sources.merge import REFERENCE, Layer
from plugrl.core.config.sources.origins import (
    Fault,
    KeyPath,
    Origin,
    dotted,
    fault_at,
    keys_of,
    mark,
    nearest,
)
from plugrl.core.wording import did_you_mean, did_you_mean_variable

_ENVIRONMENT = re.compile(r"\$\{\s*env\.([A-Za-z_]\w*)\s*(,[^}]*)?\}")

_FROM_ENVIRONMENT = re.compile(r"\$\{\s*(?:oc\.env\s*:|env\.)")
#: The last key of each reference: ``b`` in ``${a.b}``.
_REFERRED = re.compile(r"([A-Za-z_][\w-]*)\]?\s*\}")


def resolve(layer: Layer, faults: list[Fault]) -> set[KeyPath]:
    """Resolve every interpolation of ``layer`` in place; give the paths that could not be.

    ``${a.b}`` is another key, ``${env.NAME}`` and ``${oc.env:NAME}`` an environment variable,
    ``${oc.env:NAME,default}`` one with a default. A value that cannot be resolved becomes
    ``None`` and a fault.
    """
    found = [path for path, value in _strings(layer.tree, ()) if "${" in value]
    if not found:
        return set()
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    failed: set[KeyPath] = set()
    for path in found:
        text = _ENVIRONMENT.sub(_as_resolver, _at(layer.tree, path))
        _put(layer.tree, path, text)
        try:
            OmegaConf.create({"x": text})
        except (OmegaConfBaseException, RecursionError):
            message = (
                "not a valid interpolation; write ${key} or ${env.NAME}, or \\${ for a literal"
            )
            faults.append(fault_at(layer.origins, path, message))
            failed.add(path)
            _put(layer.tree, path, None)
    root = OmegaConf.create(_with_second_spellings(layer.tree))
    resolved: list[tuple[KeyPath, Any]] = []
    for path in found:
        if path in failed:
            continue
        try:
            resolved.append((path, _value(root, path)))
        except (OmegaConfBaseException, RecursionError, ValueError, TypeError) as error:
            message = _explain(error, layer.tree, _at(layer.tree, path))
            faults.append(fault_at(layer.origins, path, message))
            failed.add(path)
            resolved.append((path, None))
    written = {path: _written_at(layer, path) for path, _ in resolved if path not in failed}
    for path, value in resolved:
        _put(layer.tree, path, value)
        nested = isinstance(value, (dict, list))
        origin = nearest(layer.origins, path) if nested else written.get(path)
        if origin is not None:
            mark(value, path, origin, layer.origins)
    return failed


def from_environment(tree: Any) -> dict[KeyPath, str]:
    """The values of ``tree``, not yet resolved, that come from the environment, by their paths.

    A value that refers to such a value is one of them.
    """
    found = [(path, text) for path, text in _strings(tree, ()) if "${" in text]
    tainted = {path: text for path, text in found if _FROM_ENVIRONMENT.search(text)}
    while True:
        keys = {str(key) for path in tainted for key in path}
        more = {
            path: text
            for path, text in found
            if path not in tainted and keys & set(_REFERRED.findall(text))
        }
        if not more:
            return tainted
        tainted |= more


def _written_at(layer: Layer, path: KeyPath) -> Origin | None:
    """Where the value was written that the text at ``path`` refers to; None: it is more than that.

    The layer stays that of the text, which decides what it counts for.
    """
    here, seen = path, {path}
    while True:
        text = _look(layer.tree, here)
        match = REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            break
        here = keys_of(match[1])
        if _look(layer.tree, here) is None:
            here = _moved(here)
        if here in seen:
            return None
        seen.add(here)
    origin, own = layer.origins.get(here), nearest(layer.origins, path)
    if here == path or origin is None or own is None:
        return None
    return replace(origin, layer=own.layer, key=own.key, refers=origin.key or dotted(here))


def _moved(path: KeyPath) -> KeyPath:
    """Where a key stands that was written in its second spelling."""
    for size in range(len(path), 0, -1):
        new = MOVES.get(dotted(path[:size]))
        if new is not None:
            return (*keys_of(new), *path[size:])
    return path


def _look(tree: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _as_resolver(match: re.Match[str]) -> str:
    return f"${{oc.env:{match[1]}{match[2] or ''}}}"


def _strings(value: Any, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(value, str):
        return [(path, value)]
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in _strings(inner, (*path, key))]
    if isinstance(value, list):
        return [item for i, inner in enumerate(value) for item in _strings(inner, (*path, i))]
    return []


def _at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _put(tree: Any, path: KeyPath, value: Any) -> None:
    _at(tree, path[:-1])[path[-1]] = value


def _with_second_spellings(tree: dict[str, Any]) -> dict[str, Any]:
    """Let ``${algorithm.x}`` find what was moved to ``trainer.algorithm``."""
    whole = dict(tree)
    for old, new in MOVES.items():
        inner: Any = tree
        for part in new.split("."):
            inner = inner.get(part) if isinstance(inner, dict) else None
        outer = whole
        *sections, key = old.split(".")
        for section in sections:
            value = outer.get(section, {})
            outer[section] = dict(value) if isinstance(value, dict) else value
            outer = outer[section]
            if not isinstance(outer, dict):
                break
        if inner is not None and isinstance(outer, dict):
            outer.setdefault(key, inner)
    return whole


def _value(root: Any, path: KeyPath) -> Any:
    from omegaconf import OmegaConf

    node = root
    for part in path:
        node = node[part]
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _explain(error: Exception, tree: dict[str, Any], text: str) -> str:
    detail = str(error).splitlines()[0] if str(error) else ""
    variable = re.search(r"Environment variable '([^']*)' not found", detail)
    if variable:
        name = variable[1]
        section = tree.get("environment")
        script = isinstance(section, dict) and section.get("setup_script")
        hint = ", let environment.setup_script export it (plugrl validate --setup runs it)"
        return (
            f"environment variable {name} is not set{did_you_mean_variable(name)}; set it"
            f"{hint if script else ''}, or write ${{oc.env:{name},default}}"
        )
    missing = re.search(r"Interpolation key '([^']*)' not found", detail)
    if missing:
        close = did_you_mean(missing[1], [dotted(p) for p, _ in _leaves(tree, ())], 1)
        return f"{text} refers to {missing[1]}, which is not in the configuration{close}"
    if "ecursi" in detail or isinstance(error, RecursionError):
        return f"{text} refers to itself; break the circle"
    if "Missing mandatory value" in detail:
        return f"{text} refers to a value that is still ???"
    resolver = re.search(r"Unsupported interpolation type (\S+)", detail)
    if resolver:
        return f"{text}: there is no resolver {resolver[1]}; use ${{key}} or ${{env.NAME}}"
    return f"{text} cannot be resolved: {detail or type(error).__name__}"


def _leaves(value: Any, path: KeyPath) -> list[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value:
        return [(path, value)] * bool(path) + [
            item for key, inner in value.items() for item in _leaves(inner, (*path, key))
        ]
    return [(path, value)]
