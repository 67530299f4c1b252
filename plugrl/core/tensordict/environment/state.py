"""The state of an environment, taken and put back without pickle.

An environment is walked through from its outermost wrapper: numbers, text, arrays, collections,
random generators and the attributes of Python objects are copied. What is configuration, such as
functions, classes and spaces, stays where it is. :func:`unproven` shows by trying whether that is
all an environment consists of.
"""

from __future__ import annotations

import random
import re
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from enum import Enum
from functools import partial
from logging import Logger
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from plugrl.core.plugins.blame import one_line

#: Key of a mapping that stands for something else than plain values.
KIND = "kind"
#: What does not change, or what only draws.
_CONSTANT = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    partial,
    re.Pattern,
    Path,
    np.dtype,
    np.ufunc,
    Logger,
    EnvSpec,
)
_DRAWING = ("pygame", "matplotlib", "OpenGL", "glfw", "tkinter")
#: Types of arrays that a checkpoint holds as they are; others are held as bytes.
_NUMERIC = "biuf"
_COLLECTIONS: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "set": set,
    "frozenset": frozenset,
}
#: Flag of classes that are not built into an extension module.
_HEAP = 1 << 9
#: Steps of the proof, before and after the state is taken.
BEFORE, AFTER = 12, 40


class Unsavable(Exception):
    """An attribute cannot be taken or put back; the text says which and why."""


class Engine(NamedTuple):
    """How the state of an object that is no Python code is taken and put back."""

    take: Callable[[Any], Any]
    put: Callable[[Any, Any], None]


#: By the name of the class, ``module.Class``.
ENGINES: dict[str, Engine] = {}


def capture(environment: Any) -> dict[str, Any] | None:
    """The state of an environment as plain values and arrays; None: something cannot be saved."""
    try:
        return take(environment)
    except Unsavable:
        return None


def take(environment: Any) -> dict[str, Any]:
    """The state of an environment as plain values and arrays.

    Raises:
        Unsavable: something cannot be saved.
    """
    state: dict[str, Any] = _Taking().value(environment, type(environment).__name__)
    return state


def name_of(kind: type) -> str:
    """``module.Class`` of a class."""
    # Classes of some extension modules have none.
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"


def attributes(value: Any) -> Iterator[str]:
    """The names of what an object holds, in its dictionary and in its slots."""
    yield from getattr(value, "__dict__", ())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name


def is_constant(value: Any) -> bool:
    """Whether a value is configuration or drawing, not state."""
    if isinstance(value, _CONSTANT):
        return True
    module = str(getattr(type(value), "__module__", ""))
    return module.partition(".")[0] in _DRAWING or module.endswith("_rendering")


class _Taking:
    """One walk; what is met again is referred to, so that it is one thing again afterwards."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []

    def value(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, float, str, bytes):
            return value
        if is_constant(value):
            return {KIND: "same"}
        if isinstance(value, np.generic):
            held = np.asarray(value)
            return {KIND: "scalar", "type": held.dtype.str, "data": held.tobytes()}
        if isinstance(value, Enum):
            return {KIND: "enum", "name": value.name, "class": name_of(type(value))}
        if id(value) in self._numbers:
            return {KIND: "met", "number": self._numbers[id(value)]}
        self._numbers[id(value)] = number = len(self._kept)
        # Kept, so that nothing else gets its identity.
        self._kept.append(value)
        return {**self._composite(value, path), "number": number}

    def _composite(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, np.random.Generator):
            return {KIND: "generator", "state": value.bit_generator.state}
        if isinstance(value, np.random.RandomState):
            return {KIND: "random_state", "state": value.get_state(legacy=False)}
        if isinstance(value, random.Random):
            return {KIND: "random", "state": value.getstate()}
        if isinstance(value, gymnasium.Space):
            # Some environments draw from their spaces; nothing else of a space changes.
            drawn = self.value(value._np_random, path)
            return {KIND: "space", "generator": drawn}
        if isinstance(value, Mapping) and hasattr(value, "__setitem__"):
            pairs = [
                [self.value(key, f"{path} key"), self.value(held, f"{path}[{key!r}]")]
                for key, held in value.items()
            ]
            return {KIND: "dict", "items": pairs}
        if isinstance(value, (list, tuple, deque, set, frozenset)):
            items = [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)]
            kind = next(k for k in _COLLECTIONS if isinstance(value, _COLLECTIONS[k]))
            return {KIND: kind, "items": items, "length": getattr(value, "maxlen", None)}
        return self._object(value, path)

    def _array(self, value: np.ndarray, path: str) -> dict[str, Any]:
        if value.dtype.kind in _NUMERIC and value.dtype.isnative and value.dtype.itemsize <= 8:
            return {KIND: "array", "value": value.copy()}
        shape = list(value.shape)
        if value.dtype.hasobject:
            items = [self.value(item, f"{path}[...]") for item in value.ravel().tolist()]
            return {KIND: "objects", "shape": shape, "items": items}
        if value.dtype.names is not None:
            raise Unsavable(f"{path} is an array of records")
        kind = value.dtype.str
        return {KIND: "bytes", "type": kind, "shape": shape, "data": value.tobytes()}

    def _object(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        engine = ENGINES.get(name_of(kind))
        if engine is not None:
            return {KIND: "engine", "state": engine.take(value)}
        if not isinstance(value, gymnasium.Wrapper) and hasattr(kind, "load_state_dict"):
            return {KIND: "own", "state": deepcopy(value.state_dict())}
        names = list(attributes(value))
        if not kind.__flags__ & _HEAP or not (names or hasattr(value, "__dict__")):
            raise Unsavable(f"{path} is a {name_of(kind)}, which holds what cannot be seen")
        own = getattr(value, "__dict__", {})
        held = {}
        for name in names:
            item = own[name] if name in own else getattr(value, name)
            held[name] = self.value(item, f"{path}.{name}")
        return {KIND: "object", "class": name_of(kind), "held": held}


def restore(environment: Any, state: Mapping[str, Any]) -> None:
    """Put back what :func:`capture` took, into an environment made in the same way.

    Raises:
        Unsavable: the environment is made of other objects.
    """
    from plugrl.core.tensordict.environment.restoring import Putting

    Putting().value(state, environment, type(environment).__name__)


def unproven(
    make: Callable[[], Any], play: Callable[[Any, int | None, range], list[Any]]
) -> str | None:
    """Try whether the state of an environment can be saved: the reason if not, None if it can.

    Three are made and closed. The first is played and its state taken; the second, from the same
    seed, is left alone; the third is played from another seed and gets the state. From there on
    all must give the same numbers.

    Args:
        make: makes an environment.
        play: given an environment, a seed (None: go on) and the numbers of steps, resets it if
            there is a seed, takes these steps, with actions that depend on their numbers alone,
            and gives everything that it saw.
    """
    made: list[Any] = []
    try:
        for _ in range(3):
            made.append(make())
        taken, alone, other = made
        before, after = range(BEFORE), range(BEFORE, BEFORE + AFTER)
        first, second = play(taken, 7, before), play(alone, 7, before)
        state = take(taken)
        played, undisturbed = play(taken, None, after), play(alone, None, after)
        if not (_equal(first, second) and _equal(played, undisturbed)):
            return "two that begin from one seed give different numbers"
        play(other, 8, range(3))
        restore(other, state)
        if not _equal(play(other, None, after), played):
            return "one that gets the state of another goes on differently"
    except (Exception, SystemExit) as error:
        return str(error) if isinstance(error, Unsavable) else one_line(error)
    finally:
        for environment in made:
            with suppress(Exception):
                environment.close()
    return None


def _equal(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(some, others, strict=True)
    )
