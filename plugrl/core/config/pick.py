"""Which class or function the ``type`` of a section picks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.core.config import coerce
from plugrl.core.config.aliases import BACKEND_KINDS
from plugrl.core.config.bad import BAD
from plugrl.core.config.canonical import by_type, component_name, warn_of_renamed
from plugrl.core.config.schemas.plain_values import locate
from plugrl.core.config.schemas.schema import COMPONENT
from plugrl.core.config.sources.origins import (
    COMMAND_LINE,
    DEFAULT,
    KeyPath,
    bare_name,
    dotted,
    mark,
    move,
    nearest,
    place,
)
from plugrl.core.errors import (
    ConfigError,
    MissingNameError,
    PluginError,
    UnknownComponentError,
)
from plugrl.core.suggest import close_names

if TYPE_CHECKING:
    from plugrl.core.config.check import Checker
    from plugrl.core.plugins.registry import Registry

Value = TypeVar("Value")


class Picker:
    """The part of a :class:`Checker` that deals with components."""

    def __init__(self, checker: Checker, registry: Registry | None) -> None:
        self._checker = checker
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

    def field(self, value: Any, field: dataclasses.Field[Any], path: KeyPath) -> Any:
        """Check the value of a field that holds one component, or a list of them."""
        kind = field.metadata[COMPONENT]
        made = field.default_factory() if callable(field.default_factory) else field.default
        if isinstance(made, list):
            if value is None:
                return []
            if isinstance(value, dict) and not {"type", "backend", *_custom(kind)} & set(value):
                return self._no_list(value, kind, path)
            items = value if isinstance(value, list) else [value]
            if not isinstance(value, list):
                self._checker.origins[(*path, 0)] = nearest(self._checker.origins, path) or DEFAULT
            return [self.one(item, kind, (*path, i))[0] for i, item in enumerate(items)]
        if value is None or _unset(value, kind):
            if made is None:
                return None
            value = made
            mark(value, path, DEFAULT, self._checker.origins)
        default = made["type"] if isinstance(made, dict) else None
        return self.one(value, kind, path, default)[0]

    def _no_list(self, value: dict[str, Any], kind: str, path: KeyPath) -> Any:
        names = sorted({record.name for record in self.registry.records(kind)})
        close = close_names(next(iter(value), ""), names, 1) or names or ["NAME"]
        example = f"such as [{{type: {close[0]}}}]; change one by its number: {dotted(path)}.0"
        return self._checker.fault(path, f"must be a list of {kind}s {example}")

    def one(
        self, value: Any, kind: str, path: KeyPath, default: str | None = None
    ) -> tuple[Any, Any]:
        """Check one component; give its section with the defaults filled, and the component."""
        checker = self._checker
        value = self._spelled(value, kind, path, default)
        if not isinstance(value, dict):
            return BAD, None
        obj = self._load(value, kind, path)
        if obj is None:
            return value, None
        extra = dict.fromkeys(_custom(kind), False)
        if kind == "trainer":
            extra["train_service"] = False
        return checker.component(obj, value, path, extra=extra), obj

    def load_class(self, value: Any, kind: str, path: KeyPath) -> Any:
        """Load the class that a section picks, without checking the section or adding a fault."""
        kept = len(self._checker.faults)
        spelled = self._spelled(value, kind, path, None)
        obj = self._load(spelled, kind, path) if isinstance(spelled, dict) else None
        del self._checker.faults[kept:]
        return obj

    def _spelled(self, value: Any, kind: str, path: KeyPath, default: str | None) -> Any:
        if isinstance(value, str) and value:
            bare_name(self._checker.origins, path)
            value = {"type": value}
        if not isinstance(value, dict):
            shown = coerce.shown_value(value)
            self._checker.fault(path, f"must be the name of a {kind} or a mapping, not {shown}")
            return None
        value = dict(value)
        if kind in BACKEND_KINDS:
            by_type(value, path, self._checker.origins)
        self._choose(value, kind, path)
        if default is not None and not any(key in value for key in ("type", *_custom(kind))):
            value["type"] = default
            self._checker.origins[(*path, "type")] = DEFAULT
        return value

    def _choose(self, value: dict[str, Any], kind: str, path: KeyPath) -> None:
        """Leave either the name or the file in a section: the one that a later layer wrote."""
        file_key, class_key = _custom(kind)
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
            origins = self._checker.origins
            message = f"picks the {kind}, and so does {place(origins, (*path, 'type'))}"
            self._checker.fault((*path, files[0]), f"{message}; write one of them")
        del value["type"]

    def left_over(self, path: KeyPath) -> str:
        """What to do about a key that a layer wrote before an override named another component."""
        chosen = self._checker.origins.get((*path[:-1], "type"))
        chosen = chosen or self._checker.origins.get(path[:-1])
        by_override = chosen is not None and chosen.source == COMMAND_LINE.source
        if chosen is None or not by_override or self._layer(path) >= chosen.layer:
            return ""
        return "; if it is left from another type, put an override SECTION= first, which empties it"

    def _layer(self, path: KeyPath) -> int:
        origin = nearest(self._checker.origins, path)
        return 0 if origin is None else origin.layer

    def _load(self, value: dict[str, Any], kind: str, path: KeyPath) -> Any:
        checker = self._checker
        chosen = next((key for key in (*_custom(kind), "type") if key in value), "type")
        try:
            if chosen != "type":
                record = self._custom_record(value, kind, path)
            else:
                record = self._named_record(value, kind, path)
            if record is None:
                return None
            checker.records[dotted(path)] = record
            source = record.file or record.target.partition(":")[0]
            return self._imported(source, self.registry.load, record)
        except PluginError as error:
            checker.broken((*path, chosen), error)
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
        checker = self._checker
        name = value.get("type")
        if (*path, "type") in checker.unresolved:
            return None
        if not isinstance(name, str) or not name:
            names = ", ".join(sorted({r.name for r in self.registry.records(kind)})) or "none"
            what = "type is missing" if "type" not in value else "type must be a name"
            checker.fault(path, f"{what}; installed {kind} types: {names}")
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
            checker.fault((*path, "type"), str(error))
        except ConfigError as error:
            checker.fault((*path, "type"), str(error))
        return None

    def _custom_record(self, value: dict[str, Any], kind: str, path: KeyPath) -> Any:
        checker = self._checker
        file_key, class_key = _custom(kind)
        for key in (file_key, class_key):
            if not isinstance(value.get(key), str) or not value[key]:
                checker.fault(path, f"{file_key} and {class_key} are needed together, as text")
                return None
        here = (*path, file_key)
        found = locate(value[file_key], nearest(checker.origins, here))
        if found is None:
            checker.fault(
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
            checker.fault((*path, class_key), str(error))
            return None

    def renamed(self, schema: type, value: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        """Bring the old names in the ``RENAMED`` table of a schema to the new ones, warning."""
        table: Mapping[str, str] = getattr(schema, "RENAMED", {})
        known = {field.name for field in dataclasses.fields(schema)}
        result = dict(value)
        for old, new in table.items():
            if old not in result or old in known:
                continue
            if new in result:
                self._checker.fault((*path, old), f"is the old name of {new}; write only {new}")
                result.pop(old)
                continue
            result[new] = result.pop(old)
            move(self._checker.origins, (*path, old), (*path, new))
            warn_of_renamed((*path, old), new)
        return result


def _unset(value: Any, kind: str) -> bool:
    """Whether a section only says that a file is none, so that there is nothing to pick."""
    return (
        isinstance(value, dict)
        and value.get(_custom(kind)[0], value) is None
        and not set(value) - {*_custom(kind)}
    )


def _custom(kind: str) -> tuple[str, str]:
    return f"custom_{kind}_module_path", f"custom_{kind}_class_name"
