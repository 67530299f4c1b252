"""Read-only views of a configuration."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from plugrl.core.errors import ConfigError


class ConfigView(Mapping[str, Any]):
    """A read-only mapping with attribute access, equal to any mapping of the same content.

    Nested mappings are views and lists are tuples. ``view["rl.lr"]`` is ``view["rl"]["lr"]``,
    unless a key is written that way. A key that is also the name of a method
    (``get``, ``items``, ``keys``, ``values``, ``to_dict``) is reached by item only.

    Args:
        values: plain mappings, lists and scalars.
        path: where the view stands in the configuration, for messages.
        checked: the values were validated, so that no component checks them again.
    """

    __slots__ = ("_checked", "_path", "_values")

    _values: dict[str, Any]
    _path: str
    _checked: bool

    def __init__(self, values: Mapping[str, Any], path: str = "", *, checked: bool = False) -> None:
        object.__setattr__(self, "_values", plain(values))
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_checked", checked)

    def _child(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            # Nothing changes the values of a view, so that its parts need no copies.
            part = object.__new__(ConfigView)
            for name, held in (("_values", value), ("_path", path), ("_checked", self._checked)):
                object.__setattr__(part, name, held)
            return part
        if isinstance(value, list):
            return tuple(self._child(item, f"{path}[{i}]") for i, item in enumerate(value))
        return value

    #: What is said of a key that is missing and like none that is there.
    _remedy = ""

    def _miss(self, key: object) -> str:
        where = f"{self._path}.{key}" if self._path else str(key)
        close = difflib.get_close_matches(str(key), self._values, n=1)
        hint = f"; did you mean {close[0]}?" if close else self._remedy
        return f"the configuration has no {where}{hint}"

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            part, dot, rest = key.partition(".") if isinstance(key, str) else (key, "", "")
            held = self[part] if dot else None
            if isinstance(held, ConfigView):
                return held[rest]
            raise KeyError(self._miss(key))
        value = self._values[key]
        if not isinstance(value, (dict, list)):
            return value
        return self._child(value, f"{self._path}.{key}" if self._path else key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default``; no message is worded for a key that is missing."""
        if key not in self:
            return default
        return self[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._values:
            raise AttributeError(self._miss(name))
        return self[name]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a configuration is read-only; cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a configuration is read-only; cannot delete {name}")

    def __contains__(self, key: object) -> bool:
        if key in self._values or not isinstance(key, str):
            return key in self._values
        part, dot, rest = key.partition(".")
        held = self[part] if dot and part in self._values else None
        return isinstance(held, ConfigView) and rest in held

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return bool(self._values == plain(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._values, self._path, self._checked)

    def to_dict(self) -> dict[str, Any]:
        """Give a deep copy as plain dictionaries and lists, which the caller may change."""
        copied: dict[str, Any] = plain(self._values)
        return copied


class HyperParameters(ConfigView):
    """Everything that defines the experiment: all sections but those that ``settings`` covers."""

    __slots__ = ()

    _remedy = "; declare a section that a trainer reads in its `sections`"


class ExperimentSettings(ConfigView):
    """What does not change the algorithm: device, threads, run folder, progress."""

    __slots__ = ()


def is_validated(config: Any) -> bool:
    """Whether ``config`` is a view of values that were checked already."""
    return isinstance(config, ConfigView) and config._checked


def _rebuild(cls: type[ConfigView], values: dict[str, Any], path: str, checked: bool) -> ConfigView:
    return cls(values, path, checked=checked)


def plain(value: Any, *, resolve: bool = True) -> Any:
    """Copy views, OmegaConf nodes, tuples and other mappings to plain dictionaries and lists.

    Raises:
        ConfigError: an interpolation of an OmegaConf node cannot be resolved.
    """
    if isinstance(value, ConfigView):
        value = value._values
    if type(value).__module__.partition(".")[0] == "omegaconf":
        value = _from_omegaconf(value, resolve)
    if isinstance(value, Mapping):
        return {key: plain(item, resolve=resolve) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, resolve=resolve) for item in value]
    return value


def _from_omegaconf(value: Any, resolve: bool) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not OmegaConf.is_config(value):
        return value
    try:
        return OmegaConf.to_container(value, resolve=resolve)
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from None
