"""The state of an environment, taken and put back without pickle.

An environment is walked through from its outermost wrapper: numbers, text, arrays, collections,
random generators and the attributes of Python objects are copied. What is configuration, such as
functions, classes and spaces, stays where it is. :func:`resume_fault` shows by trying whether that
is all an environment consists of.
"""

from __future__ import annotations

import random
import re
import sys
import types
import weakref
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

from plugrl.core.plugins.user_code.error_location import one_line

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
    weakref.ref,
)
#: The same of torch and TorchRL, ``module.Class``. They are not imported for it, which would take
#: seconds in the process of a copy, but are there already where there are any.
_CONSTANT_OF_TORCH = frozenset(
    ("torch.device", "torch.dtype", "torch.Size", "torchrl.data.tensor_specs.TensorSpec")
)
#: Packages of base classes that are no code of an environment's own.
_BASES = frozenset(("builtins", "abc", "typing"))
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
_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
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


def capture(environment: Any) -> dict[str, Any]:
    """The state of an environment as plain values and arrays.

    Args:
        environment: with its wrappers.

    Raises:
        Unsavable: something cannot be saved.
    """
    state: dict[str, Any] = _Capture().value(environment, type(environment).__name__)
    return state


def restore(environment: Any, state: Mapping[str, Any]) -> None:
    """Put back what :func:`capture` gave, into an environment made in the same way.

    Raises:
        Unsavable: the environment is made of other objects.
    """
    _Restoration().value(state, environment, type(environment).__name__)


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
    if module.startswith("torch") and not _CONSTANT_OF_TORCH.isdisjoint(
        map(name_of, type(value).__mro__)
    ):
        return True
    return module.partition(".")[0] in _DRAWING or module.endswith("_rendering")


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class of a module, which is not imported to find that out."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


class _Capture:
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
        if _is_of(value, "torch", "Tensor"):
            return {KIND: "tensor", "value": value.detach().clone()}
        if _is_of(value, "tensordict", "TensorDictBase"):
            entries = [[key, self.value(entry, f"{path}[{key!r}]")] for key, entry in value.items()]
            return {KIND: "tensordict", "size": list(value.batch_size), "items": entries}
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
        # Wrappers pass on what they wrap, and modules of torch save their tensors alone.
        is_part = isinstance(value, gymnasium.Wrapper) or _is_of(value, "torch.nn", "Module")
        if not is_part and hasattr(kind, "load_state_dict"):
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


class _Restoration:
    """One walk through a state, and beside it through the environment that gets it."""

    def __init__(self) -> None:
        self._met: dict[int, Any] = {}
        self._packages: set[str] = set()
        #: What stands for something of the state by now, and can stand for nothing else.
        self._used: dict[int, Any] = {}

    def _is_free(self, current: Any) -> bool:
        """Whether ``current`` may stand for one more thing; it may not from then on.

        Two attributes may hold one object before, and two in the state.
        """
        if id(current) in self._used:
            return False
        self._used[id(current)] = current
        return True

    def value(self, state: Any, current: Any, path: str) -> Any:
        """What is to stand in the place of ``current``, which is changed where possible."""
        if not isinstance(state, dict):
            return state
        kind = state[KIND]
        if kind == "same":
            return current
        if kind == "scalar":
            return np.frombuffer(state["data"], state["type"])[0]
        if kind == "enum":
            return self._class(state["class"], current, path)[state["name"]]
        if kind == "met":
            return self._met[state["number"]]
        put = getattr(self, f"_{kind}")(state, current, path)
        self._met[state["number"]] = put
        return put

    def _array(self, state: dict[str, Any], current: Any, path: str) -> Any:
        saved: np.ndarray = state["value"]
        if _is_outside(current) and current.shape == saved.shape and current.dtype == saved.dtype:
            # It shows memory of something else, which goes on reading there.
            np.copyto(current, saved)
            return current
        return saved.copy()

    def _tensor(self, state: dict[str, Any], current: Any, path: str) -> Any:
        saved = state["value"]
        if not _is_of(current, "torch", "Tensor"):
            return saved.clone()
        if _is_of(current, "torch.nn", "Parameter") and current.shape == saved.shape:
            current.data.copy_(saved)
            return current
        return saved.to(current.device, copy=True)

    def _tensordict(self, state: dict[str, Any], current: Any, path: str) -> Any:
        from tensordict import TensorDict, TensorDictBase

        held = current if isinstance(current, TensorDictBase) else {}
        items = {k: self.value(v, held.get(k, None), f"{path}[{k!r}]") for k, v in state["items"]}
        return TensorDict(items, batch_size=state["size"], device=getattr(current, "device", None))

    def _bytes(self, state: dict[str, Any], current: Any, path: str) -> Any:
        return np.frombuffer(state["data"], state["type"]).reshape(state["shape"]).copy()

    def _objects(self, state: dict[str, Any], current: Any, path: str) -> Any:
        shape = tuple(state["shape"])
        array = np.empty(shape, object)
        held = (
            current.ravel().tolist()
            if isinstance(current, np.ndarray) and current.shape == shape
            else []
        )
        flat = array.reshape(-1)
        for i, item in enumerate(self._items(state, held, path)):
            flat[i] = item
        return array

    def _generator(self, state: dict[str, Any], current: Any, path: str) -> Any:
        name = state["state"]["bit_generator"]
        is_same = isinstance(current, np.random.Generator) and (
            type(current.bit_generator).__name__ == name
        )
        if not is_same or not self._is_free(current):
            if name not in _BIT_GENERATORS:
                raise Unsavable(f"{path} draws from {name}, which is not known")
            current = np.random.Generator(_BIT_GENERATORS[name]())
        current.bit_generator.state = state["state"]
        return current

    def _random_state(self, state: dict[str, Any], current: Any, path: str) -> Any:
        if not isinstance(current, np.random.RandomState):
            current = np.random.RandomState()
        current.set_state(state["state"])
        return current

    def _random(self, state: dict[str, Any], current: Any, path: str) -> Any:
        self._need(current, path, hasattr(current, "setstate"))
        current.setstate(state["state"])
        return current

    def _space(self, state: dict[str, Any], current: Any, path: str) -> Any:
        self._need(current, path, hasattr(current, "_np_random"))
        current._np_random = self.value(state["generator"], current._np_random, path)
        return current

    def _dict(self, state: dict[str, Any], current: Any, path: str) -> Any:
        held = dict(current) if isinstance(current, dict) else {}
        target: Any = current if isinstance(current, dict) and self._is_free(current) else {}
        self._met[state["number"]] = target
        target.clear()
        for key, item in state["items"]:
            key = self.value(key, None, path)
            target[key] = self.value(item, held.get(key), f"{path}[{key!r}]")
        return target

    def _items(self, state: dict[str, Any], held: list[Any], path: str) -> list[Any]:
        held = held + [None] * (len(state["items"]) - len(held))
        return [self.value(item, held[i], f"{path}[{i}]") for i, item in enumerate(state["items"])]

    def _list(self, state: dict[str, Any], current: Any, path: str) -> Any:
        held = list(current) if isinstance(current, list) else []
        target = current if isinstance(current, list) and self._is_free(current) else []
        # Known before its items, one of which may refer to it.
        self._met[state["number"]] = target
        target[:] = self._items(state, held, path)
        return target

    def _tuple(self, state: dict[str, Any], current: Any, path: str) -> Any:
        items = self._items(state, list(current) if isinstance(current, tuple) else [], path)
        make = getattr(type(current), "_make", tuple)
        return make(items)

    def _deque(self, state: dict[str, Any], current: Any, path: str) -> Any:
        held = list(current) if isinstance(current, deque) else []
        items = self._items(state, held, path)
        is_same = isinstance(current, deque) and current.maxlen == state["length"]
        if not is_same or not self._is_free(current):
            return deque(items, state["length"])
        current.clear()
        current.extend(items)
        return current

    def _set(self, state: dict[str, Any], current: Any, path: str) -> Any:
        items = self._items(state, [], path)
        if not isinstance(current, set) or not self._is_free(current):
            return set(items)
        current.clear()
        current.update(items)
        return current

    def _frozenset(self, state: dict[str, Any], current: Any, path: str) -> Any:
        return frozenset(self._items(state, [], path))

    def _engine(self, state: dict[str, Any], current: Any, path: str) -> Any:
        engine = ENGINES.get(name_of(type(current)))
        if engine is None:
            raise Unsavable(f"{path} is a {name_of(type(current))}, and was something else")
        engine.put(current, state["state"])
        return current

    def _own(self, state: dict[str, Any], current: Any, path: str) -> Any:
        self._need(current, path, hasattr(current, "load_state_dict"))
        current.load_state_dict(state["state"])
        return current

    def _object(self, state: dict[str, Any], current: Any, path: str) -> Any:
        is_same = name_of(type(current)) == state["class"]
        if is_same:
            packages = {base.__module__.partition(".")[0] for base in type(current).__mro__}
            self._packages |= packages - _BASES
        if not is_same or not self._is_free(current):
            kind = type(current) if is_same else self._class(state["class"], None, path)
            if kind.__new__ is not object.__new__:
                raise Unsavable(f"{path} is a {state['class']}, which only its own code can make")
            current = object.__new__(kind)
        self._met[state["number"]] = current
        held = getattr(current, "__dict__", {})
        for name in [name for name in attributes(current) if name not in state["held"]]:
            if name in held:
                del held[name]
            else:
                object.__delattr__(current, name)
        for name, item in state["held"].items():
            before = held[name] if name in held else getattr(current, name, None)
            put = self.value(item, before, f"{path}.{name}")
            if name in held or name not in _slots(type(current)):
                # Past properties and frozen classes.
                held[name] = put
            else:
                object.__setattr__(current, name, put)
        return current

    def _class(self, name: str, current: Any, path: str) -> Any:
        """The class of this name: that of ``current``, or one of the environment's own code.

        A state names classes, which must not reach anything else that this process has loaded.
        """
        if current is not None and name_of(type(current)) == name:
            return type(current)
        found: Any = None
        if name.partition(".")[0] in self._packages:
            module = name
            while found is None and "." in module:
                module = module.rpartition(".")[0]
                found = sys.modules.get(module)
            for part in name[len(module) + 1 :].split("."):
                found = getattr(found, part, None)
        if not isinstance(found, type) or not (issubclass(found, Enum) or name_of(found) == name):
            raise Unsavable(f"{path} was a {name}, which is not the environment's own")
        return found

    @staticmethod
    def _need(current: Any, path: str, is_there: bool) -> None:
        if not is_there:
            raise Unsavable(f"{path} is a {name_of(type(current))}, and was something else")


def _slots(kind: type) -> set[str]:
    found: set[str] = set()
    for cls in kind.__mro__:
        slots = cls.__dict__.get("__slots__", ())
        found |= {slots} if isinstance(slots, str) else set(slots)
    return found


def _is_outside(array: Any) -> bool:
    """Whether an array shows memory that is not numpy's."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return False
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.base is None:
            return False
        base = base.base
    return True


def resume_fault(
    make: Callable[[], Any],
    play: Callable[[Any, int | None, range], list[Any]],
    capture: Callable[[Any], Any] = capture,
    restore: Callable[[Any, Any], None] = restore,
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
        capture: gives its state.
        restore: puts a state back.
    """
    made: list[Any] = []
    try:
        for _ in range(3):
            made.append(make())
        taken, alone, other = made
        before, after = range(BEFORE), range(BEFORE, BEFORE + AFTER)
        first, second = play(taken, 7, before), play(alone, 7, before)
        state = capture(taken)
        played, undisturbed = play(taken, None, after), play(alone, None, after)
        if not (equal(first, second) and equal(played, undisturbed)):
            return "two that begin from one seed give different numbers"
        play(other, 8, range(3))
        restore(other, state)
        if not equal(play(other, None, after), played):
            return "one that gets the state of another goes on differently"
    except (Exception, SystemExit) as error:
        return str(error) if isinstance(error, Unsavable) else one_line(error)
    finally:
        for environment in made:
            with suppress(Exception):
                environment.close()
    return None


def equal(some: list[Any], others: list[Any]) -> bool:
    """Whether two lists hold equal arrays and numbers."""
    return len(some) == len(others) and all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(some, others, strict=True)
    )
