"""Where each value of a configuration was written, and faults that say so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError

#: Keys and list indexes from the root of a configuration to one value.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Origin:
    """The place that wrote a value; ``str(origin)`` is ``file.yaml:12`` or ``command line``.

    Attributes:
        folder: where the relative paths of that place are looked up first.
        layer: number of the layer; a higher one was merged later. 0: no layer.
        key: the key that stands there, when it is another spelling of the one it came to mean.
        refers: the key that wrote the value there, when another one refers to it.
    """

    source: str
    line: int | None = None
    folder: Path | None = field(default=None, compare=False)
    layer: int = field(default=0, compare=False)
    key: str | None = field(default=None, compare=False)
    refers: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT = Origin("default")
COMMAND_LINE = Origin("command line")
PYTHON = Origin("Python")

Origins = dict[KeyPath, Origin]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a configuration; ``str(fault)`` is its line in the report.

    ``written`` is the key as somebody wrote it, where that is another spelling of ``path``.
    ``unknown`` is the last part of a key that no schema has.
    """

    path: str
    origin: Origin | None
    message: str
    suggestion: str | None = None
    written: str | None = None
    unknown: str | None = None

    def __str__(self) -> str:
        place = "" if self.origin in (None, DEFAULT) else f"({self.origin})"
        if self.origin is not None and self.origin.refers:
            place = f"({self.origin}, {self.origin.refers})"
        key = (self.written or self.path).replace("\r", "\\r").replace("\n", "\\n")
        where = " ".join(part for part in (key, place) if part)
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{where}: {self.message}{hint}" if where else f"{self.message}{hint}"


def dotted(path: KeyPath) -> str:
    """Write a path as messages and overrides do: ``trainer.phases[0].lr``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def keys_of(path: str) -> KeyPath:
    """The keys of a path that :func:`dotted` wrote."""
    keys: list[str | int] = []
    for part in path.replace("[", ".[").split("."):
        index = part[1:-1]
        # A key that somebody wrote may have brackets of its own.
        is_index = part.startswith("[") and part.endswith("]") and index.isascii()
        keys.append(int(index) if is_index and index.isdigit() else part)
    return tuple(keys)


def nearest(origins: Origins, path: KeyPath, *, written: bool = False) -> Origin | None:
    """Give the origin of ``path``, or of the closest thing around it that has one.

    With ``written``, defaults are passed over: somebody wrote what is wrong.
    """
    return _nearest(origins, path, written)[0]


def _nearest(origins: Origins, path: KeyPath, written: bool) -> tuple[Origin | None, str | None]:
    """Give the origin, and the key that was written there for ``path`` if it is another."""
    for length in range(len(path), -1, -1):
        found = origins.get(path[:length])
        if found is not None and not (written and found == DEFAULT):
            return found, dotted((found.key, *path[length:])) if found.key else None
    return None, None


def fault_at(origins: Origins, path: KeyPath, message: str, suggestion: str | None = None) -> Fault:
    """Make the fault of ``path``, with the place and the key that somebody wrote."""
    origin, written = _nearest(origins, path, True)
    return Fault(dotted(path), origin, message, suggestion, written)


def place(origins: Origins, path: KeyPath) -> str:
    """Write a key and its place for a message: ``trainer.type (a.yaml:3)``."""
    return str(fault_at(origins, path, "")).rpartition(":")[0]


def shown(path: Path) -> str:
    """Write a path for messages: relative when it lies under the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except (ValueError, OSError):
        return str(path)


def mark(value: Any, path: KeyPath, origin: Origin, origins: Origins) -> None:
    """Record ``origin`` for ``path`` and for everything below it."""
    origins[path] = origin
    if isinstance(value, dict):
        for key, item in value.items():
            mark(item, (*path, key), origin, origins)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            mark(item, (*path, index), origin, origins)


def forget(path: KeyPath, origins: Origins) -> None:
    """Drop the origins of ``path`` and of everything below it."""
    for known in [known for known in origins if known[: len(path)] == path]:
        del origins[known]


def move(origins: Origins, old: KeyPath, new: KeyPath) -> None:
    """Let everything recorded under ``old`` be recorded under ``new``, with the key of ``old``."""
    for known in [known for known in origins if known[: len(old)] == old]:
        origin = origins.pop(known)
        origins[new + known[len(old) :]] = replace(origin, key=origin.key or as_written(known))


def as_written(path: KeyPath) -> str:
    """Write a path like :func:`dotted`; an override holds the number of an item as text."""
    return dotted(tuple(int(part) if str(part).isdigit() else part for part in path))


def bare_name(origins: Origins, path: KeyPath) -> None:
    """Note that the name at ``path`` stands for ``{type: name}``."""
    origin, written = _nearest(origins, path, False)
    if origin is not None:
        origins[(*path, "type")] = replace(origin, key=written or dotted(path))


#: Faults that one report spells out; close names are looked for in no more either.
MOST_FAULTS = 100


def raise_faults(faults: list[Fault], summary: str) -> None:
    """Raise one ``ConfigError`` for all ``faults``, if there are any."""
    lines = list(dict.fromkeys(str(fault) for fault in faults))
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        more = len(lines) - MOST_FAULTS
        shown = lines if more <= 0 else [*lines[:MOST_FAULTS], f"... and {more:,} more"]
        raise ConfigError(f"{summary}: {len(lines)} faults", shown)
