"""Trainers that run phases: each phase is the run's configuration with its own sections on top."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any, get_args

from plugrl.core.config import coerce
from plugrl.core.config.check import Checker, hints_of
from plugrl.core.config.preflight import section_at
from plugrl.core.config.root import RootChecker
from plugrl.core.config.schemas.sections import COMMON, SettingsConfig
from plugrl.core.config.sources.merge import Layer, merge
from plugrl.core.config.sources.origins import Fault, KeyPath, dotted, keys_of, nearest
from plugrl.core.config.validated import ValidatedConfig

#: Sections, and with a dot the keys of `settings`, that are read once, for the whole run. The
#: device alone is each trainer's own.
_OF_THE_RUN = frozenset(
    {"project_name", "experiment_name", "plugins", "environment", "trackers", "runtime_monitor"}
    | {f"settings.{field.name}" for field in dataclasses.fields(SettingsConfig)}
) - {"settings.device"}
#: Added to the layer of what a phase writes, because it stands over every layer of the run.
_OVER = 1_000_000


def check_phases(root: RootChecker) -> list[tuple[str, ValidatedConfig]] | None:
    """Check every phase as a configuration of its own, and the run's sections through them.

    Gives ``None`` when the trainer runs no phases.
    """
    found = root.phase_field()
    if found is None:
        return None
    checker = root.checker
    key, declared = found
    path: KeyPath = ("trainer", key)
    section = root.tree.get("trainer")
    items = section.get(key) if isinstance(section, dict) else None
    if not isinstance(items, list) or not items:
        if path not in checker.unresolved:
            checker.fault(path, "must be a list of at least one phase, each a mapping with a name")
        items = []
    phases = [_Phase(root, item, (*path, i), declared) for i, item in enumerate(items)]
    taken: set[str] = set()
    for phase in phases:
        phase.check_name(taken)
        phase.run()
    _root_sections(root, phases)
    root.place_unknown(_places(root, path, phases))
    trainer = root.filled.get("trainer")
    if not isinstance(trainer, dict):
        return []
    trainer[key] = [phase.written() for phase in phases]
    return [(phase.name, phase.root.result(phase.inner)) for phase in phases]


class _Phase:
    """One item of the list, merged over the run's sections."""

    def __init__(
        self, outer: RootChecker, item: Any, path: KeyPath, declared: dataclasses.Field[Any]
    ) -> None:
        self.outer = outer
        self.path = path
        self.item = item
        self.own: dict[str, Any] = {}
        self.name = ""
        self.inner: list[tuple[str, ValidatedConfig]] = []
        self.schema = _item_schema(outer.cls, declared)
        self.fields = (
            {field.name for field in dataclasses.fields(self.schema)} if self.schema else {"name"}
        )
        whole, self.over = self._merged()
        shared = frozenset(outer.tree) - frozenset(self.over.tree)
        checker = Checker(
            outer.checker.pick.registry,
            whole.origins,
            _below(outer.checker.unresolved, path),
            elsewhere=outer.checker.elsewhere,
        )
        checker.pick.failures = outer.checker.pick.failures
        self.root = RootChecker(
            checker, whole.tree, foreign=shared, removed=frozenset(whole.removed)
        )

    def _merged(self) -> tuple[Layer, Layer]:
        outer = self.outer
        base = Layer(
            {k: copy.deepcopy(v) for k, v in outer.tree.items() if k != "trainer"},
            {p: o for p, o in outer.checker.origins.items() if p[:1] != ("trainer",)},
            set(outer.removed),
        )
        over = Layer()
        if isinstance(self.item, dict):
            over.tree = {k: copy.deepcopy(v) for k, v in self.item.items() if k not in self.fields}
            size = len(self.path)
            over.origins = {
                p[size:]: dataclasses.replace(o, layer=o.layer + _OVER)
                for p, o in outer.checker.origins.items()
                if p[:size] == self.path and p[size : size + 1] and p[size] not in self.fields
            }
            self.own = {k: v for k, v in self.item.items() if k in self.fields}
        merge(base, over, outer.checker.faults)
        place = nearest(outer.checker.origins, self.path)
        if place is not None:
            base.origins[()] = place
        return base, over

    def check_name(self, taken: set[str]) -> None:
        """Check the keys of the item that are no sections."""
        checker = self.outer.checker
        if not isinstance(self.item, dict):
            shown = coerce.shown_value(self.item)
            checker.fault(self.path, f"must be a mapping with a name, not {shown}")
            return
        if self.schema is not None:
            self.own = checker.fields(self.own, self.schema, self.path)[0]
        name = self.own.get("name")
        here: KeyPath = (*self.path, "name")
        if not isinstance(name, str) or not name:
            if not any(fault.path == dotted(here) for fault in checker.faults):
                checker.fault(here, "is required; write a name")
            return
        if name in taken:
            checker.fault(here, f"another phase is called {name}; choose another name")
        taken.add(name)
        self.name = name

    def run(self) -> None:
        """Check the merged configuration, and report its faults where they were written."""
        if not isinstance(self.item, dict):
            return
        self._refuse_what_is_of_the_run()
        self.root.trainer()
        inner = check_phases(self.root)
        if inner is None:
            self.root.sections()
            self.root.place_unknown()
        self.inner = inner or []
        checker, outer = self.root.checker, self.outer.checker
        if not checker.faults and not outer.faults:
            self.root.cross_check()
        prefix = dotted(self.path)
        written = {dotted(path) for path in self.over.origins}
        for fault in checker.faults:
            origin = fault.origin
            mine = fault.path in written or keys_of(fault.path)[0] not in self.outer.tree
            mine = mine or (origin is not None and origin.layer >= _OVER)
            if mine or fault.path.startswith("trainer"):
                fault = _moved(fault, prefix)
            outer.faults.append(fault)
        outer.plugin_error = outer.plugin_error or checker.plugin_error
        for key in checker.unchecked:
            mine = key in written or key.startswith("trainer")
            if not mine and key in outer.unchecked:
                continue
            outer.unchecked.append(f"{prefix}.{key}" if mine else key)
            if key in checker.meant:
                meant = checker.meant[key]
                named = f"{prefix}.{meant}" if mine and "." in meant else meant
                outer.meant[outer.unchecked[-1]] = named
        size = len(self.path)
        for path, origin in checker.origins.items():
            if path[:1] == ("trainer",) or (path[:1] and path[0] in self.over.tree):
                outer.origins.setdefault(self.path[:size] + path, origin)

    def _refuse_what_is_of_the_run(self) -> None:
        settings = self.over.tree.get("settings")
        inner = settings if isinstance(settings, dict) else {}
        for key in [*self.over.tree, *(f"settings.{key}" for key in inner)]:
            if key in _OF_THE_RUN:
                path = (*self.path, *key.split("."))
                instead = f"belongs to the whole run; write {key}, outside of the phases"
                self.outer.checker.fault(path, instead)

    def written(self) -> dict[str, Any]:
        """Give the item again with what it wrote filled in, so that it validates to the same."""
        sections = {k: v for k, v in self.root.filled.items() if k in self.over.tree}
        given = sections.get("settings")
        if isinstance(given, dict):
            written = self.over.tree["settings"]
            sections["settings"] = {k: v for k, v in given.items() if k in written}
        return {**self.own, **sections}


def _moved(fault: Fault, prefix: str) -> Fault:
    """Give the fault of a phase with the names that it has in the whole configuration."""
    suggestion = fault.suggestion
    if suggestion and "." in suggestion:
        suggestion = " or ".join(f"{prefix}.{part}" for part in suggestion.split(" or "))
    written = fault.written
    # An override may say phases.2 where a path says phases[2].
    if written and not re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", written).startswith(f"{prefix}."):
        written = f"{prefix}.{written}"
    path = f"{prefix}.{fault.path}"
    return dataclasses.replace(fault, path=path, written=written, suggestion=suggestion)


def _places(root: RootChecker, path: KeyPath, phases: list[_Phase]) -> dict[str, Any]:
    """Give what phases read: their trainers below ``path``, and sections with all their keys."""
    shared: dict[str, Any] = {}
    for phase in phases:
        shared = {**phase.root.filled, **shared}
    items = [{"trainer": phase.root.filled.get("trainer")} for phase in phases]
    trainer = {**(root.filled.get("trainer") or {}), str(path[-1]): items}
    return {**shared, "trainer": trainer}


def _item_schema(cls: Any, declared: dataclasses.Field[Any]) -> type | None:
    arguments = get_args(hints_of(cls.Config)[declared.name])
    if arguments and dataclasses.is_dataclass(arguments[0]) and isinstance(arguments[0], type):
        return arguments[0]
    return None


def _below(paths: frozenset[KeyPath], prefix: KeyPath) -> frozenset[KeyPath]:
    size = len(prefix)
    inside = {path[size:] for path in paths if path[:size] == prefix}
    return frozenset(inside | {path for path in paths if path[:1] != ("trainer",)})


def _root_sections(root: RootChecker, phases: list[_Phase]) -> None:
    """Check what belongs to the run itself, and keep the sections that some phase reads."""
    read: dict[str, Any] = {}
    for phase in phases:
        for name, schema in phase.root.schemas.items():
            read.setdefault(name, schema)
    known = all(phase.root.cls is not None for phase in phases) and bool(phases)
    for name, value in root.tree.items():
        if name in COMMON or name == "trainer":
            continue
        if name in read:
            root.filled[name] = _project(value, [p.root.filled.get(name) for p in phases])
            _check_overridden(root, name, read[name])
        elif known:
            root.unread_section(name, value)
    common: set[str] = set(COMMON) - {"trainer"}
    for name in sorted(common - set(root.filled), key=list(COMMON).index):
        root.check_section(name, COMMON[name])


def _check_overridden(root: RootChecker, name: str, schema: Any) -> None:
    """Check what the run says in a section even where every phase says otherwise.

    The section may be a part that only phases complete: what it lacks is no fault here.
    """
    origins, unresolved = dict(root.checker.origins), root.checker.unresolved
    checker = Checker(root.checker.pick.registry, origins, unresolved, rules=False)
    checker.pick.failures = root.checker.pick.failures
    alone = RootChecker(checker, {name: copy.deepcopy(root.tree[name])})
    alone.check_section(name, schema)
    told = {(fault.origin, fault.message) for fault in root.checker.faults}
    for fault in checker.faults:
        try:
            value = section_at(root.tree, fault.path)
        except (KeyError, IndexError, TypeError):
            continue
        is_value = value is not None and not isinstance(value, dict)
        if is_value and fault.unknown is None and (fault.origin, fault.message) not in told:
            root.checker.faults.append(fault)


def _project(written: Any, filled: list[Any]) -> Any:
    """Give what was written, each value as the first phase that kept it has it now."""
    if isinstance(written, dict):
        mappings = [value for value in filled if isinstance(value, dict)]
        return {
            key: _project(value, [m[key] for m in mappings if key in m])
            for key, value in written.items()
        }
    for value in filled:
        if isinstance(written, str) and isinstance(value, str) and value.endswith(written):
            return value
        if isinstance(written, list) and isinstance(value, list) and len(value) == len(written):
            return value
    return written
