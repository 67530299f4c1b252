"""``key=value`` overrides of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugrl.core.config.sources.merge import Below, Indexed, Layer
from plugrl.core.config.sources.origins import COMMAND_LINE, Fault, KeyPath, Origin, Origins, mark
from plugrl.core.config.sources.reader import read_text
from plugrl.core.errors import ConfigError

_SEGMENT = re.compile(r"[^.\[\]\s=]+")
_INDEX = re.compile(r"\[(\d+)\]")


def check_texts(name: str, value: object, example: str, kinds: tuple[type, ...] = (str,)) -> None:
    """Refuse what a Python caller may give by mistake for a list of texts, such as one text.

    Raises:
        ConfigError: ``value`` is no list or tuple, or an item is of another type than ``kinds``.
    """
    if not isinstance(value, (list, tuple)):
        shown = repr(value) if isinstance(value, kinds) else f"a {type(value).__name__}"
        raise ConfigError(f"{name} must be a list such as {example}, not {shown}")
    for item in value:
        if not isinstance(item, kinds):
            raise ConfigError(f"{name} must be a list such as {example}; it holds {item!r}")


def read_overrides(overrides: Sequence[str], faults: list[Fault]) -> list[Layer]:
    """Turn each ``key=value`` to a layer of its own; a bad one becomes a fault.

    Values are YAML: ``a.b=1``, ``a.c=[1, 2]``, ``a.d={x: 1}``, ``a.e=`` (null),
    ``a.list[0]=x`` or ``a.list.0=x``.
    """
    layers = []
    for text in overrides:
        layer = _read(text, faults)
        if layer is not None:
            layers.append(layer)
    return layers


def _read(text: str, faults: list[Fault]) -> Layer | None:
    key, equals, value = text.partition("=")
    if key[:1] == "~":
        message = f"override {text!r} starts with ~; write {key.lstrip('~')}=null"
        faults.append(Fault("", COMMAND_LINE, message))
        return None
    if not equals:
        name, colon, rest = text.partition(":")
        remedy = f"; write {name.strip()}={rest.strip()}" if colon else ""
        faults.append(Fault("", COMMAND_LINE, f"override {text!r} is not key=value{remedy}"))
        return None
    if key[:1] == "+":
        message = f"override {text!r} starts with +; write {key.lstrip('+')}={value}"
        faults.append(Fault("", COMMAND_LINE, message))
        return None
    path = _split(key)
    if path is None:
        faults.append(
            Fault(
                "", COMMAND_LINE, f"override {text!r}: {key!r} is not a key such as data.batch_size"
            )
        )
        return None
    if path[0] == "defaults":
        faults.append(Fault("defaults", COMMAND_LINE, "belongs in a file, not in an override"))
        return None
    origin = Origin(COMMAND_LINE.source, None, Path.cwd())
    scratch: Origins = {}
    try:
        parsed = read_text(value, origin, scratch, faults, path)
    except ConfigError as error:
        message = str(error).removeprefix(f"{COMMAND_LINE.source}: ")
        faults.append(Fault("", COMMAND_LINE, f"override {text!r}: {message}"))
        return None
    return _layer(path, parsed, origin)


def _split(key: str) -> tuple[str, ...] | None:
    parts = _INDEX.sub(r".\1", key).split(".")
    if not all(_SEGMENT.fullmatch(part) for part in parts) or parts[0].isdigit():
        return None
    return tuple(parts)


def _layer(path: tuple[str, ...], value: Any, origin: Origin) -> Layer:
    tree: Any = value
    for part in reversed(path):
        tree = (Indexed if part.isdigit() else Below)({part: tree})
    layer = Layer(tree)
    prefix: KeyPath = ()
    for part in path:
        prefix = (*prefix, part)
        layer.origins[prefix] = origin
    mark(value, prefix, origin, layer.origins)
    return layer
