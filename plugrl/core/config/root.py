"""The root of a configuration: the sections, and the trainer that decides which are read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, get_origin

from plugrl.core.config import coerce
from plugrl.core.config.canonical import remedy, settle
from plugrl.core.config.check import Checker, hints_of
from plugrl.core.config.misplaced import say_who_was_meant, with_places, without_slips
from plugrl.core.config.pick import custom_keys
from plugrl.core.config.schemas.schema import COMPONENT, PHASES, takes_free_keys
from plugrl.core.config.schemas.sections import COMMON, DEFAULTS, KNOWN, TEXT
from plugrl.core.config.sources.merge import Layer
from plugrl.core.config.sources.origins import (
    DEFAULT,
    MOST_FAULTS,
    KeyPath,
    mark,
)
from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.errors import PluginError
from plugrl.core.plugins.packages.requirements import check_requirements
from plugrl.core.wording import close_names


class RootChecker:
    """The root of a configuration: which sections are read, and by which schema.

    Args:
        checker: checks the sections and collects the faults.
        tree: the composed values; changed in place.
        foreign: sections that this trainer may leave unread, because another phase reads them.
        removed: sections that are null and were written below.
    """

    def __init__(
        self,
        checker: Checker,
        tree: dict[str, Any],
        foreign: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
    ) -> None:
        self.checker = checker
        self.tree = tree
        self.foreign = foreign
        self.removed = removed
        self.filled: dict[str, Any] = {}
        self.cls: Any = None

    def plugins(self) -> None:
        """Block and require plugins before any component is looked up."""
        self.check_section("plugins", COMMON["plugins"])
        section = self.filled.get("plugins")
        if not isinstance(section, dict):
            return
        disabled, required = section.get("disable"), section.get("require")
        for index, name in enumerate(disabled if isinstance(disabled, list) else ()):
            if not isinstance(name, str):
                continue
            path: KeyPath = ("plugins", "disable", index)
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
                self.checker.fault(path, f"{name!r} is no name of a plugin")
            elif close := self.checker.pick.registry.close_plugin(name):
                self.checker.fault(path, f"no plugin {name!r} is installed; did you mean {close}?")
            else:
                self.checker.pick.registry.disable([name])
        if isinstance(required, list):
            texts = [text for text in required if isinstance(text, str)]
            for line in check_requirements(texts) if texts else []:
                self.checker.fault(("plugins", "require"), line)

    def trainer(self) -> None:
        """Find the trainer, which decides the sections, and check its own section."""
        path: KeyPath = ("trainer",)
        if path in self.checker.unresolved:
            return
        written = self.tree.get("trainer")
        if written is None:
            written = {}
        if isinstance(written, str):
            written = self.tree["trainer"] = {"type": written}
        self.cls = self.checker.pick.load_class(written, "trainer", path)
        before, sections = len(self.checker.faults), set(self.tree)
        layer = Layer(self.tree, self.checker.origins)
        settle(layer, self.checker.faults, frozenset(self.schemas), self._has_own)
        self._decide_validation()
        if self.cls is None:
            # Which sections there are depends on the trainer.
            del self.checker.faults[before:]
            for name in set(self.tree) - sections:
                del self.tree[name]
        before = len(self.checker.faults)
        self.filled["trainer"], _ = self.checker.component_at(
            self.tree.get("trainer") or {}, "trainer", path
        )
        self._name_sections(before)

    def _name_sections(self, before: int) -> None:
        """Name the sections where a trainer has its keys that has none beside its type."""
        faults, own = self.checker.faults, [name for name in self.schemas if name not in COMMON]
        for index, fault in enumerate(faults[before:], before):
            if fault.unknown and fault.message == "unknown key" and not fault.suggestion and own:
                message = f"{fault.message}; keys of {self.name} are in {', '.join(own)}"
                faults[index] = dataclasses.replace(fault, message=message)

    def _has_own(self, path: KeyPath) -> bool:
        """Whether the section ``path`` begins with picks a file whose component has this key."""
        kind = str(path[0])
        section = self.tree.get(kind)
        if not isinstance(section, dict) or custom_keys(kind)[0] not in section:
            return False
        component = self.checker.pick.load_class(section, kind, path[:1])
        schema = getattr(component, "Config", None)
        if len(path) > 2 and takes_free_keys(component):
            return True
        for part in path[1:]:
            if not (isinstance(schema, type) and dataclasses.is_dataclass(schema)):
                return False
            if part not in {field.name for field in dataclasses.fields(schema)}:
                return False
            schema = hints_of(schema)[str(part)]
        return True

    def _decide_validation(self) -> None:
        """Decide whether there is something to validate on; a part of a recipe cannot know."""
        section = self.tree.get("validate")
        if "validate" in self.schemas and isinstance(section, dict):
            data = section.get("data")
            held_out = isinstance(data, dict) and bool(data.get("data_files") or data.get("name"))
            general = self.tree.get("data")
            if isinstance(general, dict) and general.get("name"):
                # Which of its splits is held out, only a user knows.
                held_out = held_out or (isinstance(data, dict) and bool(data.get("splits")))
            if section.get("enabled") == "auto":
                section["enabled"] = held_out or self.tree.get("scenario") is not None

    @property
    def schemas(self) -> dict[str, Any]:
        """The sections that are read, with their schemas."""
        return {**COMMON, **(TEXT if self.cls is None else self.cls.sections)}

    @property
    def name(self) -> str:
        """What messages call the trainer."""
        record = self.checker.records.get("trainer")
        section = self.tree.get("trainer")
        kind = section.get("type") if isinstance(section, dict) else None
        return str(record.name if record is not None else kind or "the trainer")

    def phase_field(self) -> tuple[str, dataclasses.Field[Any]] | None:
        """Give the field of the trainer's schema that holds phases, if there is one."""
        schema = getattr(self.cls, "Config", None)
        fields = dataclasses.fields(schema) if dataclasses.is_dataclass(schema) else ()
        for each in fields:
            if each.metadata.get(PHASES):
                return each.name, each
        return None

    def sections(self) -> None:
        """Check all sections that the trainer reads; any other is a fault."""
        schemas = self.schemas
        for name, value in self.tree.items():
            if name in schemas or name in self.foreign:
                continue
            if name in KNOWN and (self.cls is None or value is None):
                continue
            # Null removes a section; a slip in a name that nobody wrote is still told.
            if value is not None or not (name in self.removed or self._readers(name)):
                self.unread_section(name, value)
        for name, schema in schemas.items():
            # Without a trainer nobody knows whether an absent section would be read.
            read = self.cls is not None or name in COMMON or name in self.tree
            if read and name not in self.filled and name != "trainer":
                before = len(self.checker.faults)
                self.check_section(name, schema)
                if self.cls is None and name not in COMMON:
                    self._spare_other_keys(before)

    def _spare_other_keys(self, before: int) -> None:
        """Forget unknown keys that resemble none: the trainer that cannot be had may read them."""
        faults = self.checker.faults
        new = faults[before:]
        faults[before:] = [each for each in new if each.unknown is None or each.suggestion]

    def place_unknown(self, inner: Mapping[str, Any] | None = None) -> None:
        """Add to the faults of unknown keys where such a key belongs; ``inner`` has more places."""
        checker = self.checker
        known = {**self.filled, **(inner or {})}
        # Its keys name those of other sections.
        known.pop("sweep", None)
        checker.faults[:] = with_places(checker.faults, known, checker.unchecked)

    def unread_section(self, name: str, value: Any) -> None:
        """Add the fault of a section that nothing reads."""
        checker = self.checker
        inner = [key for key in value if remedy((name, key))] if isinstance(value, dict) else []
        if name == "service" and inner:
            for key in inner:
                checker.unknown((name, key), "unknown key", None)
            return
        if remedy((name,)):
            checker.unknown((name,), "unknown section", None)
            return
        if name in KNOWN or (name not in COMMON and name in TEXT):
            readers = self._readers(name)
            who = f"; read by {', '.join(readers)}" if readers else ""
            checker.fault((name,), f"trainer {self.name} does not read this section{who}")
            return
        few = len(checker.faults) < MOST_FAULTS
        close = close_names(name, [*self.schemas, *KNOWN], 1) if few else []
        if self.cls is None and not close and self._names_a_trainer():
            # The trainer that cannot be imported may read it.
            return
        note = (
            "" if close or self.cls is None else f"; {self.name} reads: {', '.join(self.schemas)}"
        )
        checker.unknown((name,), f"unknown section{note}", close[0] if close else None)

    def _names_a_trainer(self) -> bool:
        """Whether there is a trainer, of a package or in a file, even if it cannot be imported."""
        section = self.tree.get("trainer")
        custom = isinstance(section, dict) and "custom_trainer_module_path" in section
        return custom or "trainer" in self.checker.records

    def _readers(self, name: str) -> list[str]:
        registry = self.checker.pick.registry
        found = []
        for record in registry.records("trainer"):
            try:
                if name in registry.load(record).sections:
                    found.append(record.name)
            except PluginError:
                continue
        return found

    def check_section(self, name: str, schema: Any) -> None:
        """Check one section and keep it with its defaults."""
        checker, path = self.checker, (name,)
        given = self.tree.get(name)
        if name not in self.tree and name in DEFAULTS:
            given = DEFAULTS[name]
        if name not in self.tree:
            mark(given, path, DEFAULT, checker.origins)
        if path in checker.unresolved:
            return
        if isinstance(schema, dataclasses.Field):
            if COMPONENT in schema.metadata:
                self.filled[name] = checker.component_field(given, schema, path)
                return
            if given is None:
                given = checker.default(schema, path)
            schema = Any
        if schema is None:
            if name in self.tree:
                self.filled[name] = checker.value(given, Any, path, {})
                checker.unchecked.append(name)
            return
        if given is None and name in self.tree and name in DEFAULTS:
            checker.fault(path, f"must be {coerce.NAMES[schema]}, not null")
            return
        if isinstance(given, dict) and get_origin(schema) is dict:
            given = without_slips(checker, given, path)
            for key in given:
                if any(character in key for character in ".[]"):  # no path would tell it apart
                    checker.fault((*path, key), "the name of a model has no dot and no bracket")
        before = len(checker.faults)
        self.filled[name] = checker.value(given, schema, path, {})
        if isinstance(given, dict) and get_origin(schema) is dict:
            say_who_was_meant(checker.faults, before, given, name)

    def cross_check(self) -> None:
        """Ask the trainer about what no single section can know.

        A trainer class may have ``check_config(config)``, which gives ``(path, message)`` pairs.
        """
        check = getattr(self.cls, "check_config", None)
        if check is None:
            return
        for path, message in check(self.result([]).hyper_params):
            self.checker.fault(tuple(path.split(".")), message)

    def result(self, phases: list[tuple[str, ValidatedConfig]]) -> ValidatedConfig:
        """Give the outcome; only sound when there was no fault."""
        order = [*self.schemas, *(name for name in self.filled if name not in self.schemas)]
        return ValidatedConfig(
            tree={name: self.filled[name] for name in order if name in self.filled},
            origins=self.checker.origins,
            unchecked=self.checker.unchecked,
            records=self.checker.records,
            trainer=self.cls,
            phases=phases,
            meant=self.checker.meant,
        )
