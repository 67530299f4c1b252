"""Calls hooks so that a failing plugin harms neither the run nor the other plugins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError, PluginError, StopRun
from plugrl.core.plugins.loading import describe_error
from plugrl.core.plugins.user_code.copies import own_copy

if TYPE_CHECKING:
    import pluggy

    from plugrl.core.plugins.callbacks import Callback

logger = logging.getLogger(__name__)

#: The one hook whose ConfigError ends the run: it exists to refuse a configuration.
REFUSING_HOOK = "plugrl_configure"


class HookCaller:
    """Calls the hooks of the loaded plugins, one plugin after the other.

    Args:
        manager: the plugins, from ``load_hook_plugins``; None: no plugins.
        strict: whether a hook that fails ends the run instead of being logged and counted.
        callbacks: hooks of this run alone, called after those of the plugins, in order.
    """

    def __init__(
        self,
        manager: pluggy.PluginManager | None = None,
        *,
        strict: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._manager = manager
        self._strict = strict
        self._callbacks = callbacks
        self._failures: dict[tuple[str, str], int] = {}

    @property
    def failures(self) -> Mapping[tuple[str, str], int]:
        """How often each (plugin, hook) failed so far."""
        return MappingProxyType(self._failures)

    def listens(self, name: str) -> bool:
        """Whether anything implements this hook, so that its arguments are worth computing."""
        return next(self._implementations(name), None) is not None

    def _implementations(
        self, name: str
    ) -> Iterator[tuple[str, Callable[..., Any], Sequence[str], bool]]:
        """Who implements a hook, the function, its arguments, and whether it takes them by name."""
        if self._manager is not None:
            for found in reversed(getattr(self._manager.hook, name).get_hookimpls()):
                yield f"plugin {found.plugin_name}", found.function, found.argnames, False
        for callback in self._callbacks:
            if name in callback.hooks:
                function, taken = callback.hooks[name]
                yield f"callback {callback.name}", function, taken, callback.by_name

    def call(self, name: str, **arguments: Any) -> None:
        """Call one hook of all plugins in their order (``tryfirst``, plain, ``trylast``).

        They only observe: each gets its own copy of containers, so changes have no effect.

        A failure is logged once for each plugin and hook, and counted each time.

        Raises:
            StopRun: a plugin requests a clean end; the remaining plugins are called first.
            ConfigError: a plugin refuses the configuration (``plugrl_configure`` only).
            PluginError: a hook failed and the caller is strict.
        """
        stop: StopRun | None = None
        for who, function, taken, by_name in self._implementations(name):
            values = {argument: own_copy(arguments[argument]) for argument in taken}
            try:
                function(**values) if by_name else function(*values.values())
            except StopRun as request:
                stop = stop or request
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if name == REFUSING_HOOK and isinstance(error, ConfigError):
                    raise
                self._failed(who, name, error)
        if stop is not None:
            raise stop

    def _failed(self, who: str, hook: str, error: BaseException) -> None:
        message = f"{who}: hook {hook} failed: {describe_error(error)}"
        if self._strict:
            raise PluginError(message) from error
        key = (who.partition(" ")[2], hook)
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] == 1:
            logger.warning("%s; further failures are only counted", message)
            logger.debug("traceback of the failure above", exc_info=error)
