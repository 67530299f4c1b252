"""Builds the components that a validated configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.component import build
from plugrl.core.errors import ConfigError, PluginError, PlugrlError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.plugins.user_code.error_location import one_line, raised_at, source_location

if TYPE_CHECKING:
    from plugrl.core.plugins.kinds import Record
    from plugrl.core.plugins.registry import Registry


class Factory:
    """Builds the components that a configuration picks.

    Args:
        registry: where names are resolved.
        records: the records that validation has resolved, by path in the configuration.
        own: components that a schema brings along, by kind and name; they take precedence over the
            registry.
    """

    def __init__(
        self,
        registry: Registry,
        records: Mapping[str, Record] | None = None,
        own: Mapping[tuple[str, str], Any] | None = None,
    ) -> None:
        self.registry = registry
        self._records = dict(records or {})
        self._own = dict(own or {})
        #: Loaded once, so that a run keeps the component that it began with.
        self._loaded: dict[Record, Any] = {}

    def record(self, kind: str, section: Mapping[str, Any], path: str) -> Record:
        """The record of the component that ``section`` at ``path`` names, for other processes.

        Raises:
            ConfigError: the section names no component.
        """
        record = self._records.get(path)
        if record is None:
            name = section.get("type")
            if not name:
                raise ConfigError(f"{path}: type is missing; it names a {kind}")
            own = self._own.get((kind, str(name)))
            if own is not None:
                return self.registry.own(kind, own)
            record = self.registry.resolve(kind, str(name))
        return record

    def below(self, path: str) -> dict[str, Record]:
        """The records of all sections nested below ``path``, by path."""
        return {p: r for p, r in self._records.items() if p.startswith((f"{path}.", f"{path}["))}

    def load(self, kind: str, section: Mapping[str, Any], path: str) -> Any:
        """The class or function that ``section`` at ``path`` names.

        Raises:
            ConfigError: the section names no component.
            PluginError: the component cannot be imported.
        """
        record = self.record(kind, section, path)
        if record not in self._loaded:
            self._loaded[record] = self.registry.load(record)
        return self._loaded[record]

    def build(self, kind: str, section: Mapping[str, Any], path: str) -> Any:
        """Build the component that ``section`` at ``path`` names.

        Raises:
            ConfigError: as :meth:`load`, or the section is wrong.
            PluginError: the component's constructor failed.
        """
        cls = self.load(kind, section, path)
        try:
            return build(cls, section)
        except PlugrlError:
            raise
        except (Exception, SystemExit) as error:
            at = raised_at(error) or source_location(cls)
            raise PluginError(
                f"{path}: {kind} {section.get('type', cls.__name__)!r} could not be built: "
                f"{one_line(error)}" + (f" at {at}" if at else "")
            ) from error


def component_record(kind: str, section: Mapping[str, Any]) -> Record:
    """The record of the component that a section means in this process.

    Raises:
        PlugrlError: there is no such component.
    """
    registry = default_registry()
    file = section.get(f"custom_{kind}_module_path")
    if file is not None:
        return registry.load_path(kind, file, section[f"custom_{kind}_class_name"])
    return registry.resolve(kind, section["type"])


def make_component(kind: str, section: Mapping[str, Any] | str) -> Any:
    """Build the component that a section, or a name alone, means in this process.

    Raises:
        PlugrlError: there is no such component, or it cannot be loaded.
    """
    section = {"type": section} if isinstance(section, str) else section
    return build(default_registry().load(component_record(kind, section)), section)
