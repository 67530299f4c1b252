"""``Component``: the base of evaluators, workers, services, scenarios and trackers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plugrl.core.config.check import configure
from plugrl.core.config.view import ConfigView

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class NoConfig:
    """The schema of a component that has nothing to configure."""


def traits(**attributes: Any) -> Callable[[Function], Function]:
    """Decorator that sets attributes of a function component, such as ``Config`` and ``reads``."""

    def decorate(function: Function) -> Function:
        for name, value in attributes.items():
            setattr(function, name, value)
        return function

    return decorate


class Component:
    """A class that a configuration picks by name and that is built from its own section.

    Args:
        config: the component's section, as a mapping, an OmegaConf node or a ``ConfigView``.

    Raises:
        ConfigError: a key of ``config`` is unknown to ``Config`` or has the wrong type.
    """

    #: Dataclass that describes the section; inherited when a subclass has none.
    Config: ClassVar[type] = NoConfig

    def __init__(self, config: Any = None) -> None:
        self.config: ConfigView = configure(type(self), {} if config is None else config)

    @property
    def _config(self) -> ConfigView:
        """The name that the guides use for :attr:`config`."""
        return self.config

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Check what no schema can, before a run folder is made; `plugrl validate` calls it too.

        Yield ``(path of a setting, what is wrong)`` pairs. Read headers; load nothing large.
        """
        return ()


def build(cls: type, config: Any) -> Any:
    """Build a component; a constructor without a ``config`` parameter is called without it."""
    parameters = list(inspect.signature(cls).parameters.values())
    takes_config = any(
        p.name == "config"
        or p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    )
    return cls(config) if takes_config else cls()
