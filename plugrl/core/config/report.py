"""What the check of a configuration has found so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from plugrl.core.config.bad import BAD
from plugrl.core.config.canonical import remedy
from plugrl.core.config.sources.origins import Fault, KeyPath, Origins, dotted, fault_at

if TYPE_CHECKING:
    from plugrl.core.errors import PluginError
    from plugrl.core.plugins.kinds import Record

_ALGORITHM: KeyPath = ("trainer", "algorithm")


class CheckReport:
    """The faults of a configuration, with what they are worded from.

    Args:
        origins: where the values were written; origins of defaults are added.
        unresolved: paths whose value is missing because of an earlier fault.

    Attributes:
        unchecked: keys that no schema describes.
        meant: for some unchecked keys, the known one that they resemble.
        records: the component that was picked at each path.
        plugin_error: the first plugin that cannot be used.
    """

    def __init__(
        self, origins: Origins | None = None, unresolved: frozenset[KeyPath] = frozenset()
    ) -> None:
        self.origins: Origins = {} if origins is None else origins
        self.unresolved = unresolved
        self.faults: list[Fault] = []
        self.unchecked: list[str] = []
        self.meant: dict[str, str] = {}
        self.records: dict[str, Record] = {}
        self.plugin_error: PluginError | None = None

    def fault(self, path: KeyPath, message: str, suggestion: str | None = None) -> Any:
        """Add a fault at ``path``."""
        self.faults.append(fault_at(self.origins, path, message, suggestion))
        return BAD

    def unknown(
        self, path: KeyPath, message: str, suggestion: str | None, known: Collection[str] = ()
    ) -> None:
        """Add the fault of a key that no schema has; ``known`` are those of its section."""
        instead = None if self.is_own_algorithm(path[:-1]) else remedy(path, known)
        if instead is not None:
            self.fault(path, f"unknown key: {instead}")
            return
        fault = fault_at(self.origins, path, message, suggestion)
        self.faults.append(dataclasses.replace(fault, unknown=str(path[-1])))

    def is_own_algorithm(self, section: KeyPath) -> bool:
        """Whether it is a component, with keys of its own instead of those that others know."""
        return section == _ALGORITHM and dotted(_ALGORITHM) in self.records

    def broken(self, path: KeyPath, error: PluginError) -> None:
        """Add a plugin that cannot be used."""
        self.plugin_error = self.plugin_error or error
        self.fault(path, str(error))
