"""Checks that the methods and functions of a component can be called the way plugrl does."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from plugrl.core.plugins.kinds import KINDS

#: The arguments of functions, for kinds without a base class.
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "advantage": ("rewards", "group", "run", "valid", "batch", "config"),
    "loss": ("logp", "batch", "config"),
    "data_map": ("row",),
}

#: Classes that have passed, since a run checks the same ones many times.
_sound: weakref.WeakSet[type] = weakref.WeakSet()


def signature_fault(kind: str, value: Any) -> str | None:
    """What is wrong with the parameters of a component, with the right ones; None: nothing."""
    if inspect.isclass(value):
        fault = None if value in _sound else next(_method_faults(value), None)
        if fault is None:
            _sound.add(value)
        return fault
    names = FUNCTIONS.get(kind)
    if names is None or inspect.isbuiltin(value) or _accepts(value, names, {}):
        return None
    shown = getattr(value, "__name__", type(value).__name__)
    answer = KINDS[kind].form.partition(" -> ")[2]
    return (
        f"{shown}{_format_signature(value)} has the wrong parameters; write "
        f"{shown}({', '.join(names)}) -> {answer}"
    )


def _method_faults(cls: type) -> Iterator[str]:
    for name in dir(cls):
        if name.startswith("__"):
            continue
        own = inspect.getattr_static(cls, name)
        owner = next((c for c in cls.__mro__ if name in vars(c)), cls)
        contract = _overridden_method(owner, name)
        if contract is None:
            continue
        if not (inspect.isfunction(own) or isinstance(own, (classmethod, staticmethod))):
            if inspect.isroutine(own) or not callable(own):
                form = _expected_signature(name, contract)
                yield f"{cls.__name__}.{name} must be a method: {form}"
            continue
        called = getattr(cls, name)
        positional, keywords = _call_arguments(contract, bound=not inspect.isfunction(own))
        if not _accepts(called, positional, keywords):
            yield (
                f"{cls.__name__}.{name}{_format_signature(called)} has the wrong parameters; write "
                f"{_expected_signature(name, contract)}"
            )


def _overridden_method(owner: type, name: str) -> Any:
    """The method of plugrl's core that ``owner`` overrides under this name; None: there is none."""
    for base in owner.__mro__[1:]:
        found = vars(base).get(name)
        if found is not None and base.__module__.startswith("plugrl.core."):
            function = found.__func__ if isinstance(found, classmethod) else found
            return function if inspect.isfunction(function) else None
    return None


def _call_arguments(contract: Any, *, bound: bool) -> tuple[tuple[str, ...], dict[str, None]]:
    """Names of the positional arguments of a call, and the keyword arguments that it must have."""
    parameters = list(inspect.signature(contract).parameters.values())[int(bound) :]
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    return tuple(positional), keywords


def _accepts(called: Any, positional: tuple[str, ...], keywords: Mapping[str, None]) -> bool:
    try:
        inspect.signature(called).bind(*positional, **keywords)
    except TypeError:
        return False
    except ValueError:
        # Built-in functions may hide their parameters; a wrong call fails when it is made.
        return True
    return True


def _format_signature(called: Any) -> str:
    return str(inspect.signature(called).replace(return_annotation=inspect.Signature.empty))


def _expected_signature(name: str, contract: Any) -> str:
    signature = inspect.signature(contract)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    answer = signature.return_annotation
    # Annotations of plugrl's own code are text.
    shown = f" -> {answer}" if isinstance(answer, str) else ""
    return f"{name}{inspect.Signature(bare)}{shown}"
