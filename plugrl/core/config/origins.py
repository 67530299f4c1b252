"""Where each value of a configuration was written, and faults that say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError

#: Keys and list indexes from the root of a configuration to one value.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Origin:
    """The place that wrote a value; ``str(origin)`` is ``file.yaml:12`` or ``command line``.

    ``folder`` is where the relative paths of that place are looked up first.
    """

    source: str
    line: int | None = None
    folder: Path | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT = Origin("default")
COMMAND_LINE = Origin("command line")
PYTHON = Origin("Python")

Origins = dict[KeyPath, Origin]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a configuration; ``str(fault)`` is its line in the report."""

    path: str
    origin: Origin | None
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        place = "" if self.origin in (None, DEFAULT) else f"({self.origin})"
        where = " ".join(part for part in (self.path, place) if part)
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


def nearest(origins: Origins, path: KeyPath, *, written: bool = False) -> Origin | None:
    """Give the origin of ``path``, or of the closest thing around it that has one.

    With ``written``, defaults are passed over: somebody wrote what is wrong.
    """
    for length in range(len(path), -1, -1):
        found = origins.get(path[:length])
        if found is not None and not (written and found is DEFAULT):
            return found
    return None


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
    """Let everything recorded under ``old`` be recorded under ``new``."""
    for known in [known for known in origins if known[: len(old)] == old]:
        origins[new + known[len(old) :]] = origins.pop(known)


def raise_faults(faults: list[Fault], summary: str) -> None:
    """Raise one ``ConfigError`` for all ``faults``, if there are any."""
    lines = list(dict.fromkeys(str(fault) for fault in faults))
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        raise ConfigError(f"{summary}: {len(lines)} faults", lines)
