"""Putting the state of an environment back; see ``environment_state``."""

from __future__ import annotations

import sys
from collections import deque
from enum import Enum
from typing import Any

import numpy as np

from plugrl.core.tensordict.environment.state import (
    ENGINES,
    KIND,
    Unsavable,
    attributes,
    name_of,
)

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


class Putting:
    """One walk through a state, and beside it through the environment that gets it."""

    def __init__(self) -> None:
        self._met: dict[int, Any] = {}
        self._packages: set[str] = set()

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
        if not (
            isinstance(current, np.random.Generator)
            and type(current.bit_generator).__name__ == name
        ):
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
        target: Any = current if isinstance(current, dict) else {}
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
        target = current if isinstance(current, list) else []
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
        if not isinstance(current, deque) or current.maxlen != state["length"]:
            return deque(items, state["length"])
        current.clear()
        current.extend(items)
        return current

    def _set(self, state: dict[str, Any], current: Any, path: str) -> Any:
        items = self._items(state, [], path)
        if not isinstance(current, set):
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
        if name_of(type(current)) != state["class"]:
            kind = self._class(state["class"], None, path)
            if kind.__new__ is not object.__new__:
                raise Unsavable(f"{path} is a {state['class']}, which only its own code can make")
            current = object.__new__(kind)
        else:
            self._packages.add(type(current).__module__.partition(".")[0])
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
