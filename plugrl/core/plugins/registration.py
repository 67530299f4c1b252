"""Describes components that decorators and hooks register, and which package they belong to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.packages.installed import EntryPoint, PluginSelection, owner_of
from plugrl.core.plugins.user_code.user_files import USER_PACKAGE_PREFIX

_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class Registration:
    """A component that lives in this process.

    ``origin`` is the file and qualified name of the object: two module names for one file, such
    as ``__main__`` and the file's own, are one component.
    """

    record: Record
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Loading:
    """The package whose code is running; ``hook`` when it is one of its hooks.

    A hook answers for everything that it registers. A decorator that runs during an import
    belongs to the package of its own module, when that is known.
    """

    entry: EntryPoint
    hook: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a registry between ``Registry.snapshot`` and ``Registry.restore``."""

    registered: dict[tuple[str, str, str | None], Registration]
    used: frozenset[Record]
    selection: PluginSelection | None


def make_registration(
    kind: str, name: str, value: Any, loading: Loading | None, entries: Iterable[EntryPoint]
) -> Registration:
    """Describe ``value`` and credit it to its distribution, if it has one."""
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    path = str(getattr(value, "__qualname__", None) or f"<{type(value).__name__} object>")
    loaded = sys.modules.get(module)
    found = getattr(loaded, "__file__", None)
    file = os.path.realpath(found) if found else None
    spec = getattr(loaded, "__spec__", None)
    is_user_file = module.startswith(USER_PACKAGE_PREFIX)
    if module in _MAIN and spec is not None and spec.name not in _MAIN:
        module = spec.name
    elif module in _MAIN:
        module, is_user_file = "__main__", True
    target = f"{module}:{path}"
    entry = _owning_entry(module, is_user_file, loading, entries)
    record = Record(
        kind=kind,
        name=name,
        target=target,
        distribution=entry.distribution if entry else None,
        version=entry.version if entry else None,
        file=file if is_user_file and entry is None else None,
        source="hook" if loading is not None and loading.hook else "decorator",
    )
    return Registration(record, value, f"{file}:{path}" if file else target)


def _owning_entry(
    module: str, is_user_file: bool, loading: Loading | None, entries: Iterable[EntryPoint]
) -> EntryPoint | None:
    if loading is not None and loading.hook:
        return loading.entry
    if is_user_file:
        return None
    return owner_of(module, entries) or (loading.entry if loading is not None else None)
