"""Methods with a new name, which subclasses and callers may still know by the former one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from plugrl.core.errors import PlugrlDeprecationWarning


class RenamedMethods:
    """A base whose methods have new names.

    A class that overrides a method by its former name overrides the method, and a call by the
    former name is a call of it, ``super()`` included. Both warn.
    """

    #: New names of methods by their former ones.
    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        for former, name in cls.RENAMED_METHODS.items():
            if name in own:
                setattr(cls, former, _former(former, name, own[name]))
            elif former in own:
                _warn(former, name, f"{cls.__qualname__}.", stacklevel=3)
                setattr(cls, name, own[former])


def _former(former: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of one class by its former name; a subclass of it is not asked."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        _warn(former, name, stacklevel=3)
        return method(*args, **kwargs)

    # As PEP 702 marks what goes away, for type checkers and documentation.
    call.__dict__["__deprecated__"] = f"it is now called {name}"
    return call


def _warn(former: str, name: str, owner: str = "", *, stacklevel: int) -> None:
    message = f"{owner}{former} is now called {name}; write {name}"
    warnings.warn(message, PlugrlDeprecationWarning, stacklevel=stacklevel)
