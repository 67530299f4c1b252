"""The registry: resolves the ``type: NAME`` of a configuration to a component.

Installed components are known from metadata and imported on first use; user code registers with
the decorators. Resolution does not depend on the order of imports. It tries, in this order: a
qualified ``distribution/name``; user code; plugrl's own components; the one other installed package
with that name. Two installed packages with one bare name are an error, and no package can take a
bare name of plugrl's own.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from plugrl.core.errors import PluginError, PlugrlDeprecationWarning, UsageError
from plugrl.core.plugins.discovery import load_hook_plugins
from plugrl.core.plugins.kinds import (
    ARGUMENT,
    KIND_OF_GROUP,
    KINDS,
    OWN,
    Kind,
    Record,
    former_group_warning,
)
from plugrl.core.plugins.loading import (
    adapt_function,
    check_component,
    component_label,
    environment_hint,
    import_component,
    import_exported,
)
from plugrl.core.plugins.packages import installed
from plugrl.core.plugins.packages.installed import EntryPoint, PluginSelection, normalize
from plugrl.core.plugins.registration import Loading, Registration, Snapshot, make_registration
from plugrl.core.plugins.resolution import (
    check_installed,
    known_kind,
    match_record,
    record_of,
    unknown_component,
)
from plugrl.core.plugins.user_code.user_files import user_module_name
from plugrl.core.wording import close_names

__all__ = [
    "KINDS",
    "OWN",
    "Kind",
    "Record",
    "Registry",
    "default_registry",
    "register",
    "register_advantage",
    "register_body",
    "register_data_map",
    "register_dialogue_environment",
    "register_environment",
    "register_evaluator",
    "register_executor",
    "register_fine_tune_service",
    "register_harness_algorithm",
    "register_hub",
    "register_inference_service",
    "register_launcher",
    "register_loss",
    "register_parser",
    "register_protocol",
    "register_rollout_worker",
    "register_sandbox",
    "register_scenario",
    "register_scorer",
    "register_searcher",
    "register_tracker",
    "register_train_service",
    "register_trainer",
]

logger = logging.getLogger(__name__)
Value = TypeVar("Value")


class _LoadingStack(threading.local):
    def __init__(self) -> None:
        self.entries: list[Loading] = []


class Registry:
    """The components that a configuration can name.

    Args:
        entry_points: the installed entry points; by default those of this process, which are read
            again when ``sys.path`` changes.
        selection: which installed plugins may be used; by default the environment's.

    Attributes:
        failed: one line for each hook plugin that could not be loaded.
    """

    def __init__(
        self,
        entry_points: Iterable[EntryPoint] | None = None,
        selection: PluginSelection | None = None,
    ) -> None:
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._selection = selection
        self._registered: dict[tuple[str, str, str | None], Registration] = {}
        self._own: dict[Record, Registration] = {}
        self._used: set[Record] = set()
        self._loading = _LoadingStack()
        self.failed: list[str] = []

    @property
    def entry_points(self) -> tuple[EntryPoint, ...]:
        """The installed entry points of plugrl's groups."""
        return installed.scan() if self._entry_points is None else self._entry_points

    @property
    def selection(self) -> PluginSelection:
        """Which installed plugins may be used."""
        return self._selection or PluginSelection.from_environment()

    def close_plugin(self, name: str) -> str | None:
        """The installed plugin that was meant by the name of none; None: it is one, or like none.

        What another machine has may be disabled here too.
        """
        others = [each for each in self.entry_points if normalize(each.distribution) != OWN]
        known = {each.distribution for each in others} | {each.name for each in others}
        if normalize(name) in {normalize(each) for each in known}:
            return None
        return next(iter(close_names(name, sorted(known), 1)), None)

    def disable(self, names: Iterable[str]) -> None:
        """Block more plugins, by distribution or entry-point name, here and in child processes.

        Raises:
            UsageError: ``names`` is one text instead of several.
        """
        if isinstance(names, str):
            raise UsageError(f"names must be a list such as [{names!r}], not {names!r}")
        self._selection = self.selection.without(names)
        self._selection.export()

    @property
    def used(self) -> frozenset[Record]:
        """The records that were loaded, for ``plugins.lock.json``."""
        return frozenset(self._used)

    def register(self, kind: str, name: str, obj: Any, *, replace: bool = False) -> Record:
        """Make ``obj`` available as ``type: name`` in this process.

        The same object twice, or one that an entry point of its package also names, is one
        component. The decorators and ``plugrl_register_components`` end here.

        Raises:
            UsageError: the kind does not exist, or the name has other characters than letters,
                digits, ``_``, ``-`` and ``.``.
            PluginError: other code registered the name and ``replace`` is not set.
        """
        kind = known_kind(kind).name
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UsageError(
                f"{name!r} cannot name a {kind}: use letters, digits, '_', '-' and '.'"
            )
        stack = self._loading.entries
        new = make_registration(kind, name, obj, stack[-1] if stack else None, self.entry_points)
        key = (kind, name, new.record.distribution)
        held = self._registered.get(key)
        if held is not None and held.origin != new.origin:
            if not replace:
                raise PluginError(
                    f"{kind} {name!r} is already registered by {held.record.place}; "
                    f"choose another name for {new.record.place} or pass replace=True"
                )
            logger.warning("%s replaces %s", component_label(new.record), held.record.place)
        self._registered[key] = new
        return new.record

    @contextmanager
    def arguments(self, kind: str, objects: Mapping[str, Any]) -> Iterator[None]:
        """Make objects available under their names inside the block, in this process alone."""
        before = dict(self._registered)
        for name, obj in objects.items():
            made = make_registration(kind, name, obj, None, ())
            record = replace(made.record, source=ARGUMENT)
            self._registered[kind, name, None] = Registration(record, obj, made.origin)
        try:
            yield
        finally:
            for name in objects:
                self._used.discard(self._registered.pop((kind, name, None)).record)
                if (kind, name, None) in before:
                    self._registered[kind, name, None] = before[kind, name, None]

    def has_registered(self, kind: str, name: str) -> bool:
        """Whether code of this process, and no package, has registered such a component."""
        return (kind, name, None) in self._registered

    def own(self, kind: str, obj: Any) -> Record:
        """The record of a function or class that a schema brings along, without registering a name.

        If an entry point names the same object, the record is that of the entry point.
        """
        made = make_registration(known_kind(kind).name, obj.__name__, obj, None, self.entry_points)
        key = made.record.reference, made.record.target
        known = (r for r in self.records(kind) if (r.reference, r.target) == key)
        record = next(known, made.record)
        self._own[record] = made
        return record

    @contextmanager
    def credit_to(self, entry: EntryPoint, *, hook: bool = False) -> Iterator[None]:
        """Credit what is registered inside the block to the distribution of ``entry``."""
        self._loading.entries.append(Loading(entry, hook))
        try:
            yield
        finally:
            self._loading.entries.pop()

    def records(self, kind: str | None = None, *, disabled: bool = False) -> list[Record]:
        """The known components, sorted by kind, name and distribution.

        ``disabled`` includes components of plugins that the selection refuses.
        """
        if kind is not None:
            kind = known_kind(kind).name
        found: dict[tuple[str, str, str | None], Record] = {}
        for entry in self.entry_points:
            if entry.group in KIND_OF_GROUP:
                record = record_of(entry)
                key = (record.kind, record.name, record.distribution)
                # A package may declare one component for this version and for earlier ones.
                if key not in found or former_group_warning(entry.group) is None:
                    found[key] = record
        # Metadata first: a decorator that runs while an installed package is imported describes the
        # component that the entry point already names.
        for key, registration in list(self._registered.items()):
            found.setdefault(key, registration.record)
        selection = self.selection
        kept = [
            record
            for record in found.values()
            if kind in (None, record.kind)
            and (disabled or selection.refusal(record.distribution, record.name) is None)
        ]
        order = list(KINDS)
        return sorted(kept, key=lambda r: (order.index(r.kind), r.name, r.distribution or ""))

    def resolve(self, kind: str, name: str) -> Record:
        """The record that ``type: name`` means; nothing is imported.

        Raises:
            UnknownComponentError: nobody provides it; the message has close names, and says
                when a disabled plugin would provide it.
            AmbiguousComponentError: two installed distributions provide the bare name.
            UsageError: the kind does not exist.
        """
        kind = known_kind(kind).name
        record = match_record(kind, name, self.records(kind))
        if record is None:
            everything = self.records(kind, disabled=True)
            raise unknown_component(
                kind, name, everything, self.selection, self.failed, self.entry_points
            )
        return record

    def load(self, record: Record) -> Any:
        """Import and check the component of a record.

        The record may come from another process, as in rollout workers: its distribution must be
        installed here in the same version and declare the same target.

        Raises:
            PluginError: it cannot be imported, is not what its kind asks for, or another version
                is installed here. The original exception is the cause.
        """
        held = self._registration(record)
        value = adapt_function(record, self._import(record) if held is None else held.value)
        check_component(record, value)
        self._used.add(record)
        return value

    def _registration(self, record: Record) -> Registration | None:
        if record in self._own:
            return self._own[record]
        held = self._registered.get((record.kind, record.name, record.distribution))
        return held if held is not None and held.record.target == record.target else None

    def _import(self, record: Record) -> Any:
        if record.distribution is None:
            return import_component(record)
        entry = check_installed(record, self.entry_points)
        former = former_group_warning(entry.group)
        if former is not None:
            message = f"{component_label(record)}: {former}"
            warnings.warn(message, PlugrlDeprecationWarning, stacklevel=2)
        # No entry point names it, so only the hooks of its package can produce it again.
        if record.source == "hook":
            self._run_hooks(record.distribution)
            held = self._registration(record)
            if held is not None:
                return held.value
        with self.credit_to(entry):
            return import_component(record)

    def _run_hooks(self, distribution: str) -> None:
        """Let the hooks of one package register its components, as they did in the main process."""
        only = PluginSelection(only=frozenset({normalize(distribution)}))
        load_hook_plugins(self, only)

    def get(self, kind: str, name: str) -> Any:
        """``load(resolve(kind, name))``, with the errors of both."""
        return self.load(self.resolve(kind, name))

    def load_path(self, kind: str, path: str | os.PathLike[str], attribute: str) -> Record:
        """Import ``attribute`` from a user's Python file and check it.

        Raises:
            PluginError: the file or the attribute is missing, the import fails, or the object
                is not what its kind asks for.
        """
        kind = known_kind(kind).name
        record = Record(
            kind=kind,
            name=attribute,
            target=f"{user_module_name(path)}:{attribute}",
            file=os.path.realpath(path),
            source="path",
        )
        self.load(record)
        return record

    def snapshot(self) -> Snapshot:
        """The registrations of this process, for :meth:`restore`."""
        return Snapshot(dict(self._registered), self.used, self._selection)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to the registrations of ``snapshot``."""
        self._registered = dict(snapshot.registered)
        self._used = set(snapshot.used)
        self._selection = snapshot.selection


_default = Registry()


def default_registry() -> Registry:
    """The registry of this process, which the decorators and the commands use.

    In a child process it has what ``-p`` imported in the parent.
    """
    import_exported()
    return _default


def register(
    kind: str, name: str, *, config: type | None = None, replace: bool = False
) -> Callable[[Value], Value]:
    """Decorator that registers a class or function as ``type: name`` of ``kind``.

    ``config`` is the dataclass of a function's options; a class has its own attribute
    ``Config``. See :meth:`Registry.register` for the errors.
    """

    def decorate(value: Value) -> Value:
        if config is not None:
            value.Config = config  # type: ignore[attr-defined]
        _default.register(kind, name, value, replace=replace)
        return value

    return decorate


class _Decorator:
    """``register`` with its kind filled in: ``@register_trainer("name")``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.__doc__ = (
            f"Register {KINDS[kind].summary} as ``type: name``; see :func:`register`.\n\n"
            f"You write ``{KINDS[kind].form}``."
        )

    def __call__(
        self, name: str, *, config: type | None = None, replace: bool = False
    ) -> Callable[[Value], Value]:
        return register(self.kind, name, config=config, replace=replace)


register_trainer = _Decorator("trainer")
register_evaluator = _Decorator("evaluator")
register_rollout_worker = _Decorator("rollout_worker")
register_sandbox = _Decorator("sandbox")
register_scenario = _Decorator("scenario")
register_advantage = _Decorator("advantage")
register_loss = _Decorator("loss")
register_body = _Decorator("body")
register_data_map = _Decorator("data_map")
register_hub = _Decorator("hub")
register_executor = _Decorator("executor")
register_launcher = _Decorator("launcher")
register_inference_service = _Decorator("inference_service")
register_train_service = _Decorator("train_service")
register_fine_tune_service = _Decorator("fine_tune_service")
register_parser = _Decorator("parser")
register_protocol = _Decorator("protocol")
register_tracker = _Decorator("tracker")
register_dialogue_environment = _Decorator("dialogue_environment")
register_harness_algorithm = _Decorator("harness_algorithm")
register_scorer = _Decorator("scorer")
register_searcher = _Decorator("searcher")


def register_environment(
    name: str, *, config: type | None = None, replace: bool = False
) -> Callable[[Value], Value]:
    """The name of :data:`register_dialogue_environment` in earlier versions; it goes away.

    Raises:
        PluginError: a class of Gymnasium, PettingZoo or TorchRL is registered, which is none.
    """
    warnings.warn(
        "register_environment is now called register_dialogue_environment; write "
        "@plugrl.register_dialogue_environment",
        PlugrlDeprecationWarning,
        stacklevel=2,
    )

    def decorate(value: Value) -> Value:
        instead = environment_hint(value)
        if instead is not None:
            raise PluginError(f"{getattr(value, '__name__', value)} is {instead}")
        return register("dialogue_environment", name, config=config, replace=replace)(value)

    return decorate
