"""Methods with another name than subclasses and callers know: a former one, or a foreign one."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import PlugrlDeprecationWarning


class RenamedMethods:
    """A base whose methods have new names.

    A class that overrides a method by its former name overrides the method, and a call by the
    former name is a call of it, ``super()`` included. Both warn.

    Methods and attributes of similar bases elsewhere are none of this one. A class with such a
    method that nothing calls is refused, and reading such an attribute says what to write.
    """

    __slots__ = ()
    #: New names of methods by their former ones.
    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {}
    #: What to write instead of names that bases of other frameworks have; see
    #: :mod:`plugrl.core.foreign_names`.
    FOREIGN: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        for former, name in cls.RENAMED_METHODS.items():
            if name in own:
                setattr(cls, former, _former(former, name, own[name]))
            elif former in own:
                _warn(former, name, f"{cls.__qualname__}.", stacklevel=3)
                setattr(cls, name, own[former])
        _refuse_uncalled(cls, cls.FOREIGN)

    # For type checkers a name that is not there stays a fault.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in self.FOREIGN and not hasattr(type(self), name):
                raise AttributeError(
                    f"{type(self).__name__} has no {name}; write {self.FOREIGN[name]}"
                )
            # Raises what was raised: a property of the class may have failed.
            return object.__getattribute__(self, name)


def _refuse_uncalled(cls: type, foreign: Mapping[str, str]) -> None:
    """Refuse a user's class with a foreign method that neither plugrl nor the class calls.

    Raises:
        TypeError: it has one.
    """
    mine = [base for base in cls.__mro__ if not base.__module__.startswith("plugrl.")]
    found = [name for name in foreign if any(name in vars(base) for base in mine)]
    for name in () if not found or _is_abstract(cls) else found:
        method = getattr(cls, name)
        if not isinstance(method, FunctionType):
            continue
        kept = [vars(b)[name] for b in cls.__mro__ if b not in mine and name in vars(b)]
        if any(isinstance(value, FunctionType) for value in kept):
            continue
        # Where the base has a property of that name, a method breaks whoever reads it.
        if kept or not _calls(mine, name):
            raise TypeError(
                f"{cls.__name__}.{name} is called by nothing; write {foreign[name]}, or give a "
                "method of your own another name"
            )


def _is_abstract(cls: type) -> bool:
    """Whether methods are missing; a subclass may call what it is given then."""
    names = {n for base in cls.__mro__[1:] for n in getattr(base, "__abstractmethods__", ())}
    values = [*(getattr(cls, name, None) for name in names), *vars(cls).values()]
    return any(getattr(value, "__isabstractmethod__", False) for value in values)


def _calls(classes: list[type], name: str) -> bool:
    """Whether another method of these classes names the method."""
    members = [(n, value) for base in classes for n, value in vars(base).items() if n != name]
    functions = (getattr(v, "__func__", getattr(v, "fget", v)) for _, v in members)
    codes = (getattr(inspect.unwrap(f), "__code__", None) for f in functions if callable(f))
    return any(isinstance(code, CodeType) and name in words_in(code) for code in codes)


def words_in(code: CodeType) -> set[str]:
    """Names and texts in the code of a function, and in that of functions inside it."""
    words = {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            words |= words_in(constant)
    return words


def _former(former: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of one class by its former name; a subclass of it is not asked."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        _warn(former, name, stacklevel=3)
        return method(*args, **kwargs)

    # As PEP 702 marks what goes away, for type checkers and documentation.
    # What has to be written has the new name.
    call.__dict__.pop("__isabstractmethod__", None)
    call.__dict__["__deprecated__"] = f"it is now called {name}"
    return call


def _warn(former: str, name: str, owner: str = "", *, stacklevel: int) -> None:
    message = f"{owner}{former} is now called {name}; write {name}"
    warnings.warn(message, PlugrlDeprecationWarning, stacklevel=stacklevel)
