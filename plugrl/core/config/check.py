"""A walk over a configuration beside its schema, that fills defaults and collects all faults."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from plugrl.core.config import coerce
from plugrl.core.config.bad import ABSENT, BAD, Touched
from plugrl.core.config.canonical import second_spellings, warn_of_renamed
from plugrl.core.config.misplaced import near_misses
from plugrl.core.config.pick import Picker, custom_keys
from plugrl.core.config.report import CheckReport
from plugrl.core.config.schemas.schema import (
    BOUNDS,
    COMPONENT,
    FILE,
    OWN,
    PHASES,
    Bounds,
    takes_free_keys,
    to_plain,
)
from plugrl.core.config.sources.files import is_code_file, locate, locate_pattern
from plugrl.core.config.sources.merge import default_entry, inherit, inherit_origins
from plugrl.core.config.sources.origins import (
    DEFAULT,
    MOST_FAULTS,
    KeyPath,
    Origins,
    dotted,
    mark,
    move,
    nearest,
    raise_faults,
)
from plugrl.core.config.view import ConfigView, is_validated, plain
from plugrl.core.errors import ConfigError, PluginError
from plugrl.core.plugins.user_code.user_files import with_user_files
from plugrl.core.wording import close_names

if TYPE_CHECKING:
    from plugrl.core.plugins.registry import Registry


#: Names of a folder that are compared with one that is not there.
_SIBLINGS = 1000


@functools.lru_cache(maxsize=512)
def hints_of(schema: type) -> dict[str, Any]:
    """Give the resolved annotations of a dataclass.

    Raises:
        PluginError: an annotation names something that is not there.
    """
    try:
        return typing.get_type_hints(schema)
    except Exception as error:
        module = with_user_files(schema.__module__)
        raise PluginError(
            f"the annotations of {module}:{schema.__qualname__} cannot be resolved: "
            f"{error}; define what they name at module level"
        ) from error


class Checker(CheckReport):
    """Checks values against schemas; faults are collected, never raised.

    Args:
        registry: where the names of components are resolved; by default this process's.
        origins: where the values were written; origins of defaults are added.
        unresolved: paths whose value is missing because of an earlier fault.
        rules: whether the rules of schemas run, which may need more than one value.
        elsewhere: whether absolute paths are those of another machine, and may be missing here.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        origins: Origins | None = None,
        unresolved: frozenset[KeyPath] = frozenset(),
        *,
        rules: bool = True,
        elsewhere: bool = False,
    ) -> None:
        super().__init__(origins, unresolved)
        self._rules = rules
        self.elsewhere = elsewhere
        self.pick = Picker(self, registry)

    def value(self, value: Any, hint: Any, path: KeyPath, metadata: Mapping[Any, Any]) -> Any:
        """Check any value; give it with its defaults filled, or ``BAD``."""
        if path in self.unresolved:
            return BAD
        if isinstance(value, str) and value == "???":
            return self.fault(path, "is still ???; write a value")
        if metadata.get(PHASES):
            return [] if value is None else value
        try:
            checked = self._typed(value, hint, path)
        except coerce.WrongType as error:
            return self.fault(path, str(error))
        if not self._within(checked, metadata.get(BOUNDS), path):
            return BAD
        if metadata.get(FILE):
            return self._located(checked, path, metadata[FILE])
        return checked

    def _within(self, value: Any, bounds: Bounds | None, path: KeyPath) -> bool:
        """Whether a number, or each number of a list or mapping, is within its bounds."""
        if isinstance(value, (dict, list)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            # All of them are checked, so that one report names every fault.
            return not [key for key, item in items if not self._within(item, bounds, (*path, key))]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        fault = None if bounds is None else bounds.fault(value)
        if fault is not None:
            self.fault(path, f"{fault}, not {coerce.shown_value(value)}")
        return fault is None

    def _typed(self, value: Any, hint: Any, path: KeyPath) -> Any:
        origin = get_origin(hint)
        if hint is Any or hint is object:
            return self._free(value, path)
        if origin in (Union, types.UnionType):
            return self._union(value, get_args(hint), path)
        if origin is Literal:
            return coerce.literal(value, hint)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.fields(value, hint, path)[0]
        if origin in (list, tuple) or hint in (list, tuple):
            return self._items(value, (get_args(hint) or (Any,))[0], path)
        if (isinstance(origin, type) and issubclass(origin, Mapping)) or hint in (dict, Mapping):
            return self._entries(value, (get_args(hint) or (Any, Any))[1], path)
        if hint in coerce.NAMES:
            read = coerce.scalar(value, hint)
            if hint in (int, float):
                coerce.check_size(read, str(path[-1]) if path else "")
            return self._located(str(read), path, "optional") if hint is Path else read
        raise coerce.WrongType(f"has a type that schemas cannot use: {coerce.type_name(hint)}")

    def _union(self, value: Any, members: tuple[Any, ...], path: KeyPath) -> Any:
        if value is None and type(None) in members:
            return None
        rest = [member for member in members if member is not type(None)]
        exact = [member for member in rest if isinstance(member, type) and type(value) is member]
        if exact or len(rest) == 1:
            return self._typed(value, exact[0] if exact else rest[0], path)
        for member in rest:
            before = len(self.faults)
            try:
                checked = self._typed(value, member, path)
            except coerce.WrongType:
                continue
            if len(self.faults) == before:
                return checked
            del self.faults[before:]
        asked = " or ".join(coerce.NAMES.get(member, coerce.type_name(member)) for member in rest)
        raise coerce.WrongType(f"must be {asked}, not {coerce.shown_value(value)}")

    def _items(self, value: Any, hint: Any, path: KeyPath) -> Any:
        if value is None:
            return []
        if not isinstance(value, list):
            raise coerce.WrongType(f"must be a list, not {coerce.shown_value(value)}")
        return [self.value(item, hint, (*path, i), {}) for i, item in enumerate(value)]

    def _entries(self, value: Any, hint: Any, path: KeyPath) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise coerce.WrongType(coerce.no_mapping(value))
        value = self._inherited(value, hint, path)
        return {key: self.value(item, hint, (*path, key), {}) for key, item in value.items()}

    def _inherited(self, value: dict[str, Any], hint: Any, path: KeyPath) -> dict[str, Any]:
        """Entries with what they have from their default, if they have one without faults."""
        name = default_entry(hint, value)
        if name is None:
            return value
        before = len(self.faults)
        default = self.value(value[name], hint, (*path, name), {})
        if len(self.faults) > before:
            # It is checked with the others once more, so that it is reported once.
            del self.faults[before:]
            return value
        entries = {name: default}
        for key, item in value.items():
            if key != name:
                inherit_origins(self.origins, (*path, name), (*path, key))
                entries[key] = default if item is None else inherit(default, item)
        return entries

    def _free(self, value: Any, path: KeyPath) -> Any:
        """Take a value without a schema; only what no configuration can mean is a fault."""
        if isinstance(value, dict):
            return {key: self.value(item, Any, (*path, key), {}) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, Any, (*path, i), {}) for i, item in enumerate(value)]
        if isinstance(value, float):
            return coerce.scalar(value, float)
        return value

    def fields(
        self,
        value: Any,
        schema: type,
        path: KeyPath,
        *,
        extra: Mapping[str, bool] | None = None,
        free_below: str | None = None,
        free: bool = False,
    ) -> tuple[Any, Any]:
        """Check a mapping against a dataclass; give its plain values and the built object.

        ``extra`` names keys that are taken as they are; whether they are listed as unchecked is
        the value. Keys below the field ``free_below`` may be ones that its schema lacks.
        """
        value = {} if value is None else value
        if not isinstance(value, dict):
            raise coerce.WrongType(coerce.no_mapping(value))
        extra = extra or {}
        hints = hints_of(schema)
        fields = {field.name: field for field in dataclasses.fields(schema) if field.init}
        result: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        for key in value:
            if key not in fields:
                self._other_key(key, value[key], path, list(fields), extra, free, result)
        for name, field in fields.items():
            given = value.get(name, ABSENT)
            below = name == free_below
            result[name], objects[name] = self._field(
                given, field, hints[name], (*path, name), below
            )
        return result, self._build(schema, result, objects, path)

    def _other_key(
        self,
        key: str,
        value: Any,
        path: KeyPath,
        known: list[str],
        extra: Mapping[str, bool],
        free: bool,
        result: dict[str, Any],
    ) -> None:
        here = (*path, key)
        if not free and key not in extra:
            # A spelling that holds elsewhere is no remedy for itself.
            elsewhere = () if self.is_own_algorithm(path) else second_spellings(path)
            others = [name for name in elsewhere if name != key]
            few = len(self.faults) < MOST_FAULTS
            close = close_names(key, [*known, *extra, *others], 1) if few else []
            keys = "" if close or not known else f"; keys: {', '.join(known)}"
            left, meant = self.pick.left_over(here), close[0] if close else None
            if left:
                self.fault(here, f"unknown key{keys}{left}", meant)
            else:
                self.unknown(here, f"unknown key{keys}", meant, known)
            return
        result[key] = self.value(value, Any, here, {})
        if free or extra[key]:
            self.unchecked.append(dotted(here))

    def _field(
        self, given: Any, field: dataclasses.Field[Any], hint: Any, path: KeyPath, free: bool
    ) -> tuple[Any, Any]:
        if given is ABSENT:
            given = self.default(field, path)
            if given is BAD:
                return BAD, BAD
        if COMPONENT in field.metadata and path not in self.unresolved:
            checked = self.component_field(given, field, path)
            return checked, checked
        nested = dataclasses.is_dataclass(hint) and isinstance(hint, type)
        if nested and path not in self.unresolved:
            try:
                values, built = self.fields(given, hint, path, free=free)
            except coerce.WrongType as error:
                return self.fault(path, str(error)), BAD
            return values, BAD if built is None else built
        checked = self.value(given, hint, path, field.metadata)
        return checked, Path(checked) if hint is Path and isinstance(checked, str) else checked

    def default(self, field: dataclasses.Field[Any], path: KeyPath) -> Any:
        """Give the plain default of a field, with its origin noted."""
        if field.default is not dataclasses.MISSING:
            made = field.default
        elif field.default_factory is dataclasses.MISSING:
            return self.fault(path, "is required; write a value")
        elif isinstance(field.default_factory, type) and dataclasses.is_dataclass(
            field.default_factory
        ):
            made = {}
        else:
            made = field.default_factory()
        made = to_plain(made)
        mark(made, path, DEFAULT, self.origins)
        return made

    def _build(
        self, schema: type, result: dict[str, Any], objects: dict[str, Any], path: KeyPath
    ) -> Any:
        """Build the dataclass, so that its own rules run, and take back what they changed."""
        if not self._rules:
            return None
        try:
            built = schema(**objects)
        except Touched:
            return None
        except ConfigError as error:
            for line in error.faults:
                self._rule(list(objects), line, path)
            return None
        except Exception as error:
            self._rule(list(objects), str(error) or type(error).__name__, path)
            return None
        for name, given in objects.items():
            now = getattr(built, name, given)
            if now is not given:
                result[name] = to_plain(now)
        return built

    def _rule(self, names: list[str], message: str, path: KeyPath) -> None:
        """Add the fault of a schema's own rule, at the key that the message begins with."""
        name, _, rest = message.partition(" ")
        if name in names and rest.partition(" ")[0] in ("must", "needs", "cannot", "is", "should"):
            self.fault((*path, name), rest)
        else:
            self.fault(path, message)

    def _located(self, value: Any, path: KeyPath, sort: str) -> Any:
        """Make relative paths absolute when there is such a file beside its writer or here."""
        if isinstance(value, list):
            return [
                self._located(item, (*path, i), sort) if isinstance(item, str) else item
                for i, item in enumerate(value)
            ]
        if not isinstance(value, str):
            return value
        if (sort == "code" and not is_code_file(value)) or value.startswith("hf://"):
            return value
        if sort == "data":
            files = locate_pattern(value, nearest(self.origins, path))
            if files is not None:
                return str(files)
        value, colon, attribute = value.partition(":") if sort == "code" else (value, "", "")
        found = locate(value, nearest(self.origins, path))
        if found is None and self.elsewhere and Path(os.path.expanduser(value)).is_absolute():
            return f"{value}{colon}{attribute}"
        if found is None and sort != "optional":
            return self.fault(path, f"no such file: {value}{self._sibling(value, path)}")
        if (
            found is not None
            and sort in ("file", "folder")
            and found.is_dir() != (sort == "folder")
        ):
            wrong = "is a folder; name a file" if sort == "file" else "is no folder; name one"
            return self.fault(path, f"{found} {wrong}")
        return value if found is None else f"{found}{colon}{attribute}"

    def _sibling(self, value: str, path: KeyPath) -> str:
        """The file of a close name in the folder that a path means, as a question."""
        folder = locate(str(Path(value).parent), nearest(self.origins, path))
        if folder is None or not folder.is_dir():
            return ""
        with contextlib.suppress(OSError):
            names = map(Path, itertools.islice(os.listdir(folder), _SIBLINGS))
            stems = {each.stem: each.name for each in names if each.suffix == Path(value).suffix}
            close = close_names(Path(value).stem, stems, 1)
            return f"; did you mean {Path(value).with_name(stems[close[0]])}?" if close else ""
        return ""

    def component_field(self, value: Any, field: dataclasses.Field[Any], path: KeyPath) -> Any:
        """Check the value of a field that holds one component, or a list of them."""
        kind = field.metadata[COMPONENT]
        made = field.default_factory() if callable(field.default_factory) else field.default
        if isinstance(made, list):
            if value is None:
                return []
            if isinstance(value, dict) and not {"type", "backend", *custom_keys(kind)} & set(value):
                return self._no_list(value, kind, path)
            items = value if isinstance(value, list) else [value]
            if not isinstance(value, list):
                self.origins[(*path, 0)] = nearest(self.origins, path) or DEFAULT
            before = len(self.faults)
            found = [self.component_at(item, kind, (*path, i))[0] for i, item in enumerate(items)]
            if len(self.faults) == before:
                self._refuse_repetition(found, path)
            return found
        if value is None or _unset(value, kind):
            if made is None:
                return None
            value = made
            mark(value, path, DEFAULT, self.origins)
        default = made["type"] if isinstance(made, dict) else None
        return self.component_at(value, kind, path, default, field.metadata.get(OWN))[0]

    def _refuse_repetition(self, sections: list[Any], path: KeyPath) -> None:
        for i, section in enumerate(sections):
            if section in sections[:i]:
                first = dotted((*path, sections.index(section)))
                self.fault((*path, i), f"is the same as {first}; leave one of them out")

    def _no_list(self, value: dict[str, Any], kind: str, path: KeyPath) -> Any:
        names = sorted({record.name for record in self.pick.registry.records(kind)})
        close = close_names(next(iter(value), ""), names, 1) or names or ["NAME"]
        example = f"such as [{{type: {close[0]}}}]; change one by its number: {dotted(path)}.0"
        return self.fault(path, f"must be a list of {kind}s {example}")

    def component_at(
        self, value: Any, kind: str, path: KeyPath, default: str | None = None, own: Any = None
    ) -> tuple[Any, Any]:
        """Check one component; give its section with the defaults filled, and the component.

        ``own`` is what the field's schema brings itself, meant before others of its name.
        """
        value = self.pick.spelled(value, kind, path, default)
        if not isinstance(value, dict):
            return BAD, None
        obj = self.pick.load(value, kind, path, own)
        if obj is None:
            return value, None
        extra = dict.fromkeys(custom_keys(kind), False)
        if kind == "trainer":
            extra["train_service"] = False
        return self.component(obj, value, path, extra=extra), obj

    def component(
        self, obj: Any, value: dict[str, Any], path: KeyPath, *, extra: Mapping[str, bool]
    ) -> dict[str, Any]:
        """Check the section of a component against the component's ``Config``."""
        schema = getattr(obj, "Config", None)
        if schema is None:
            schema = _Nothing
        if not (isinstance(schema, type) and dataclasses.is_dataclass(schema)):
            name = getattr(obj, "__qualname__", obj)
            self.broken(path, PluginError(f"Config of {name} is not a dataclass"))
            return value
        extra = {**extra, "type": False}
        free_below = None
        if takes_free_keys(obj):
            free_below = "algorithm"
            if "algorithm" not in {field.name for field in dataclasses.fields(schema)}:
                extra["algorithm"] = True
        ordered = {"type": value["type"], **value} if "type" in value else value
        try:
            renamed = self._renamed(schema, ordered, path)
            before = len(self.unchecked)
            checked = self.fields(renamed, schema, path, extra=extra, free_below=free_below)[0]
            if free_below is not None:
                near_misses(self, before, checked, (*path, free_below))
            return typing.cast(dict[str, Any], checked)
        except PluginError as error:
            self.broken(path, error)
            return value

    def _renamed(self, schema: type, value: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        """Bring the old names in the ``RENAMED`` table of a schema to the new ones, warning."""
        table: Mapping[str, str] = getattr(schema, "RENAMED", {})
        known = {field.name for field in dataclasses.fields(schema)}
        result = dict(value)
        for old, new in table.items():
            if old not in result or old in known:
                continue
            if new in result:
                self.fault((*path, old), f"is the old name of {new}; write only {new}")
                result.pop(old)
                continue
            result[new] = result.pop(old)
            move(self.origins, (*path, old), (*path, new))
            warn_of_renamed((*path, old), new)
        return result


def _unset(value: Any, kind: str) -> bool:
    """Whether a section only says that a file is none, so that there is nothing to pick."""
    return (
        isinstance(value, dict)
        and value.get(custom_keys(kind)[0], value) is None
        and not set(value) - {*custom_keys(kind)}
    )


@dataclasses.dataclass
class _Nothing:
    """The schema of a component without a ``Config``."""


def check_component(cls: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Check the section of a component that is built by hand, and fill its defaults.

    Raises:
        ConfigError: with all faults.
    """
    checker = Checker()
    extra = {"train_service": False, "evaluator_module_path": False}
    extra.update({key: False for key in config if key.startswith("custom_")})
    checked = checker.component(cls, config, (), extra=extra)
    raise_faults(checker.faults, f"the configuration of {cls.__name__} is wrong")
    return checked


def configure(cls: Any, config: Any) -> ConfigView:
    """Check ``config`` against ``cls.Config``, fill the defaults and give a read-only view.

    A view that was already validated comes back unchanged. Keys under ``algorithm`` are free
    when ``cls`` inherits its ``Config``; ``train_service`` is always a free mapping.

    Raises:
        ConfigError: with one line for each unknown key, wrong type or failed rule.
    """
    if is_validated(config):
        return typing.cast(ConfigView, config)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    config = plain({} if config is None else config)
    if not isinstance(config, dict):
        kind = type(config).__name__
        raise ConfigError(f"the configuration of {cls.__name__} must be a mapping, not {kind}")
    return ConfigView(check_component(cls, config), checked=True)
