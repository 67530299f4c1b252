"""Which class or function the ``type`` of a section picks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.core.config import coerce
from plugrl.core.config.aliases import BACKEND_KINDS
from plugrl.core.config.canonical import by_type, component_name
from plugrl.core.config.sources.files import locate
from plugrl.core.config.sources.origins import (
    COMMAND_LINE,
    DEFAULT,
    KeyPath,
    bare_name,
    dotted,
    nearest,
    place,
)
from plugrl.core.errors import (
    ConfigError,
    MissingNameError,
    PluginError,
    UnknownComponentError,
)
from plugrl.core.wording import close_names

if TYPE_CHECKING:
    from plugrl.core.config.report import CheckReport
    from plugrl.core.plugins.registry import Registry

Value = TypeVar("Value")


class Picker:
    """Finds the class that a section picks; what is wrong with the choice goes to the report."""

    def __init__(self, report: CheckReport, registry: Registry | None) -> None:
        self._report = report
        self._registry = registry
        #: What could not be imported, by file or module. It is imported once and told once: many a
        #: module fails otherwise the second time, which says nothing about the cause.
        self.failures: dict[str, PluginError] = {}

    @property
    def registry(self) -> Registry:
        """The registry; by default that of this process."""
        if self._registry is None:
            from plugrl.core.plugins.registry import default_registry

            self._registry = default_registry()
        return self._registry

    def load_class(self, value: Any, kind: str, path: KeyPath) -> Any:
        """Load the class that a section picks, without checking the section or adding a fault."""
        kept = len(self._report.faults)
        spelled = self.spelled(value, kind, path, None)
        obj = self.load(spelled, kind, path) if isinstance(spelled, dict) else None
        del self._report.faults[kept:]
        return obj

    def spelled(self, value: Any, kind: str, path: KeyPath, default: str | None) -> Any:
        """The section of a component as a mapping, with either its name or its file; or None."""
        if isinstance(value, str) and value:
            bare_name(self._report.origins, path)
            value = {"type": value}
        if not isinstance(value, dict):
            shown = coerce.shown_value(value)
            self._report.fault(path, f"must be the name of a {kind} or a mapping, not {shown}")
            return None
        value = dict(value)
        if kind in BACKEND_KINDS:
            by_type(value, path, self._report.origins)
        self._choose(value, kind, path)
        if default is not None and not any(key in value for key in ("type", *custom_keys(kind))):
            value["type"] = default
            self._report.origins[(*path, "type")] = DEFAULT
        return value

    def _choose(self, value: dict[str, Any], kind: str, path: KeyPath) -> None:
        """Leave either the name or the file in a section: the one that a later layer wrote."""
        file_key, class_key = custom_keys(kind)
        if file_key in value and value[file_key] is None:
            value.pop(file_key)
            value.pop(class_key, None)
        files = [key for key in (file_key, class_key) if value.get(key) is not None]
        name = value.get("type")
        if not files or name is None:
            if files:
                value.pop("type", None)
            return
        named, filed = self._layer((*path, "type")), max(self._layer((*path, k)) for k in files)
        if named > filed:
            for key in files:
                del value[key]
            return
        if named == filed and component_name(kind, str(name)) == name:
            origins = self._report.origins
            message = f"picks the {kind}, and so does {place(origins, (*path, 'type'))}"
            self._report.fault((*path, files[0]), f"{message}; write one of them")
        del value["type"]

    def left_over(self, path: KeyPath) -> str:
        """What to do about a key that a layer wrote before an override named another component."""
        chosen = self._report.origins.get((*path[:-1], "type"))
        chosen = chosen or self._report.origins.get(path[:-1])
        by_override = chosen is not None and chosen.source == COMMAND_LINE.source
        if chosen is None or not by_override or self._layer(path) >= chosen.layer:
            return ""
        return "; if it is left from another type, put an override SECTION= first, which empties it"

    def _layer(self, path: KeyPath) -> int:
        origin = nearest(self._report.origins, path)
        return 0 if origin is None else origin.layer

    def load(self, value: dict[str, Any], kind: str, path: KeyPath, own: Any = None) -> Any:
        """The class or function that a section picks; None, with a fault, if it cannot be had.

        ``own`` is meant before others of its name.
        """
        report = self._report
        chosen = next((key for key in (*custom_keys(kind), "type") if key in value), "type")
        try:
            if chosen != "type":
                record = self._custom_record(value, kind, path)
            elif own is not None and value.get("type") == own.__name__:
                record = self.registry.own(kind, own)
            else:
                record = self._named_record(value, kind, path)
            if record is None:
                return None
            report.records[dotted(path)] = record
            source = record.file or record.target.partition(":")[0]
            return self._imported(source, self.registry.load, record)
        except PluginError as error:
            report.broken((*path, chosen), error)
        return None

    def _imported(self, source: str, load: Callable[..., Value], *arguments: Any) -> Value:
        """What ``load`` gives; the first error of importing ``source`` is the error ever after."""
        if source in self.failures:
            raise self.failures[source]
        try:
            return load(*arguments)
        except PluginError as error:
            if error.__cause__ is not None:
                self.failures[source] = error
            raise

    def _named_record(self, value: dict[str, Any], kind: str, path: KeyPath) -> Any:
        report = self._report
        name = value.get("type")
        if (*path, "type") in report.unresolved:
            return None
        if not isinstance(name, str) or not name:
            names = ", ".join(sorted({r.name for r in self.registry.records(kind)})) or "none"
            what = "type is missing" if "type" not in value else "type must be a name"
            slip = close_names("type", value, 1) if "type" not in value else []
            if slip:
                report.fault((*path, slip[0]), "unknown key; write type, which names the " + kind)
                return None
            report.fault(path, f"{what}; installed {kind} types: {names}")
            return None
        other = component_name(kind, name)
        try:
            return self.registry.resolve(kind, name)
        except UnknownComponentError as error:
            if other != name:
                try:
                    record = self.registry.resolve(kind, other)
                except UnknownComponentError:
                    record = None
                if record is not None:
                    value["type"] = other
                    return record
            report.fault((*path, "type"), str(error))
        except ConfigError as error:
            report.fault((*path, "type"), str(error))
        return None

    def _custom_record(self, value: dict[str, Any], kind: str, path: KeyPath) -> Any:
        report = self._report
        file_key, class_key = custom_keys(kind)
        for key in (file_key, class_key):
            if not isinstance(value.get(key), str) or not value[key]:
                report.fault(path, f"{file_key} and {class_key} are needed together, as text")
                return None
        here = (*path, file_key)
        found = locate(value[file_key], nearest(report.origins, here))
        if found is None:
            report.fault(
                here,
                f"no such file: {value[file_key]} (looked beside the file that names it, then "
                "in the working directory)",
            )
            return None
        value[file_key] = str(found)
        try:
            file = str(found)
            load = self.registry.load_path
            return self._imported(os.path.realpath(file), load, kind, file, value[class_key])
        except MissingNameError as error:
            # The file is sound; the configuration names what it does not have.
            report.fault((*path, class_key), str(error))
            return None


def custom_keys(kind: str) -> tuple[str, str]:
    """The keys of a section with which a file and its class take the place of a name."""
    return f"custom_{kind}_module_path", f"custom_{kind}_class_name"


def shown_name(section: Any, kind: str) -> str:
    """What a message calls a component: its ``type``, or the name that it has in a file.

    Args:
        section: of the component, checked.
        kind: of the component.
    """
    return str(section.get("type") or section.get(custom_keys(kind)[1]) or kind)
