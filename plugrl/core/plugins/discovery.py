"""Loading the hook plugins of the installed packages, each isolated from the others.

pluggy's own loader is not used: it stops at the first plugin that fails, and silently accepts
misspelt hooks and two plugins of one name. Here the order is stable, disabled plugins are never
imported, and each failure is recorded with package, phase, error and time.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from plugrl.core.errors import PluginError, PlugrlError
from plugrl.core.plugins.callbacks import runs_later
from plugrl.core.plugins.hook_types import HookRegistry
from plugrl.core.plugins.loading import describe_error, import_target, user_modules
from plugrl.core.plugins.packages.installed import (
    HOOK_GROUP,
    EntryPoint,
    PluginSelection,
)
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    import pluggy


logger = logging.getLogger(__name__)
Phase = Literal["import", "api", "hooks", "components"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """A hook plugin that could not be loaded, and the phase in which loading failed."""

    distribution: str
    version: str
    name: str
    phase: Phase
    error: BaseException
    seconds: float
    target: str = ""

    @property
    def message(self) -> str:
        """One line: who, in which phase, why, and how to go on without it."""
        remedy = f"fix or uninstall {self.distribution}, or disable it with -p no:{self.name}"
        refused = isinstance(self.error, _RefusedPluginError)
        reason = str(self.error) if refused else describe_error(self.error, self.target)
        return (
            f"plugin {self.name!r} of {self.distribution} {self.version} was not loaded "
            f"({self.phase}): {reason}; {remedy}"
        )


@dataclass(slots=True)
class LoadedPlugins:
    """The hook plugins of this process: the manager that calls them, and how loading went."""

    manager: pluggy.PluginManager
    loaded: list[EntryPoint] = field(default_factory=list)
    failures: list[LoadFailure] = field(default_factory=list)


class _RefusedPluginError(Exception):
    """A plugin was imported but cannot be used; carries the phase."""

    def __init__(self, phase: Phase, message: str) -> None:
        super().__init__(message)
        self.phase = phase


def hook_plugin_name(entry: EntryPoint) -> str:
    """The name under which a hook plugin is registered, unique over distributions."""
    return f"{entry.distribution}/{entry.name}"


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows plugrl's hooks and no plugin."""
    import pluggy

    from plugrl.core.plugins import hookspecs

    manager = pluggy.PluginManager("plugrl")
    manager.add_hookspecs(hookspecs)
    return manager


def load_hook_plugins(
    registry: HookRegistry,
    selection: PluginSelection | None = None,
    *,
    strict: bool = False,
    entries: Iterable[EntryPoint] | None = None,
) -> LoadedPlugins:
    """Load the selected hook plugins and let them register their components.

    Modules that ``-p`` named are plugins too, if they have hooks.

    Args:
        registry: receives the components.
        selection: which plugins; by default the registry's selection.
        strict: raise on the first failure instead of logging one warning for it.
        entries: the installed entry points; by default the registry's.

    Raises:
        PluginError: a plugin failed and ``strict`` is set, or a module of ``-p`` has wrong hooks.
    """
    selection = selection if selection is not None else registry.selection
    chosen = [
        entry
        for entry in sorted(registry.entry_points if entries is None else entries)
        if entry.group == HOOK_GROUP and selection.refusal(entry.distribution, entry.name) is None
    ]
    result = LoadedPlugins(new_manager())
    # Of plugins with equal priority pluggy calls the last registered one first.
    for entry in reversed(chosen):
        failure = _load(entry, result, registry)
        if failure is None:
            continue
        if strict:
            raise PluginError(failure.message) from failure.error
        result.failures.append(failure)
        # A command may load plugins twice, to validate and to run; warn only once.
        if failure.message not in registry.failed:
            logger.warning("%s", failure.message)
            registry.failed.append(failure.message)
    result.loaded.reverse()
    for name, module in user_modules().items():
        _load_hooks_of(name, module, result.manager, registry)
    return result


def _load_hooks_of(
    name: str, module: ModuleType, manager: pluggy.PluginManager, registry: HookRegistry
) -> None:
    """Use the hooks of a module that ``-p`` named, if it has some.

    Raises:
        PluginError: they are wrong; whoever names a file wants it.
    """
    if manager.is_registered(module):
        # It belongs to an installed package, which has registered it already.
        return
    try:
        check_hook_plugin(module)
        marks = [getattr(value, "plugrl_impl", None) for value in vars(module).values()]
        if not any(isinstance(mark, dict) for mark in marks):
            return
        manager.register(module, f"-p {name}")
        _register_components(manager, module, registry)
    except (PlugrlError, KeyboardInterrupt):
        raise
    except BaseException as error:
        said = str(error) if isinstance(error, _RefusedPluginError) else describe_error(error, name)
        raise PluginError(f"-p {name}: {said}") from error


def _load(entry: EntryPoint, result: LoadedPlugins, registry: HookRegistry) -> LoadFailure | None:
    started = time.perf_counter()
    phase: Phase = "import"
    plugin: Any = None
    # A plugin that fails halfway must not leave half of its components behind.
    snapshot = registry.snapshot()
    try:
        with registry.credit_to(entry):
            plugin = import_target(entry.target)
            plugin = plugin() if isinstance(plugin, type) else plugin
        phase = "hooks"
        check_hook_plugin(plugin)
        result.manager.register(plugin, hook_plugin_name(entry))
        phase = "components"
        with registry.credit_to(entry, hook=True):
            _register_components(result.manager, plugin, registry)
    except KeyboardInterrupt:
        raise
    # BaseException: a plugin that calls sys.exit() at import must not end the command.
    except BaseException as error:
        if plugin is not None and result.manager.is_registered(plugin):
            result.manager.unregister(plugin)
        registry.restore(snapshot)
        return LoadFailure(
            distribution=entry.distribution,
            version=entry.version,
            name=entry.name,
            phase=error.phase if isinstance(error, _RefusedPluginError) else phase,
            error=error,
            seconds=time.perf_counter() - started,
            target=entry.target,
        )
    result.loaded.append(entry)
    return None


def _register_components(
    manager: pluggy.PluginManager, plugin: Any, registry: HookRegistry
) -> None:
    # Only this plugin's implementation, so that a failure is attributed to the right one.
    for implementation in manager.hook.plugrl_register_components.get_hookimpls():
        if implementation.plugin is plugin:
            arguments = {"registry": registry}
            implementation.function(*[arguments[name] for name in implementation.argnames])


def check_hook_plugin(plugin: Any) -> None:
    """Check a hook module or object before it is registered.

    Raises an exception with a one-line message when it was written for another ``HOOK_API``,
    when a hook is misspelt or lacks ``@hookimpl``, when it wraps other hooks, or when a call would
    not run it.
    """
    from plugrl.core.plugins import hookspecs

    missing = object()
    declared = getattr(plugin, "PLUGRL_HOOK_API", getattr(plugin, "HOOK_API", missing))
    if declared is not missing and declared != hookspecs.HOOK_API:
        raise _RefusedPluginError(
            "api",
            f"it was written for hook API {declared!r}, this plugrl has {hookspecs.HOOK_API}; "
            "install a version of the plugin for this plugrl",
        )
    known = {name for name in vars(hookspecs) if name.startswith("plugrl_")}
    for attribute in dir(plugin):
        value = getattr(plugin, attribute, None)
        options = getattr(value, "plugrl_impl", None)
        if isinstance(options, dict):
            _check_hook(attribute, value, options, known)
        # "from plugrl... import plugrl_step_end" is no hook of this module.
        elif attribute in known and callable(value) and _is_local(plugin, value):
            raise _RefusedPluginError("hooks", f"{attribute} is not marked with @plugrl.hookimpl")


def _check_hook(attribute: str, hook: Any, options: dict[str, Any], known: set[str]) -> None:
    from plugrl.core.plugins import hookspecs

    name = options.get("specname") or attribute
    if name not in known:
        raise _RefusedPluginError(
            "hooks", f"unknown hook {name}{did_you_mean(name, sorted(known), 1)}"
        )
    if options.get("hookwrapper") or options.get("wrapper"):
        raise _RefusedPluginError(
            "hooks", f"{name} is a wrapper; hooks observe and cannot wrap one another"
        )
    if runs_later(hook):
        raise _RefusedPluginError(
            "hooks", f"{name} is async or has a yield: calling it runs nothing; write a plain def"
        )
    has = inspect.signature(getattr(hookspecs, name)).parameters
    for argument in inspect.signature(hook).parameters:
        if argument not in has:
            close = did_you_mean(argument, has, 1) or f"; it has: {', '.join(has)}"
            raise _RefusedPluginError("hooks", f"{name} has no argument {argument!r}{close}")


def _is_local(plugin: Any, value: Any) -> bool:
    owner = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    return getattr(value, "__module__", None) == owner
