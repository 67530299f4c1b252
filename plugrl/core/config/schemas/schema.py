"""How a configuration schema says which of its fields are components.

Schemas are plain dataclasses. A field that holds a component is declared with
:func:`component`; its ``type`` key then picks the class whose ``Config`` dataclass describes
the other keys. A bare string stands for ``{type: string}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from plugrl.core.errors import ConfigError

COMPONENT = "plugrl.component_kind"
#: On a component field: the function or class that the schema brings itself.
OWN = "plugrl.own_component"
HELP = "plugrl.help"
#: On a field of strings: relative paths are looked up beside the file that wrote them, then in
#: the working directory. ``"required"``: it is a fault when the file is in neither; ``"file"`` and
#: ``"folder"``: also when it is the other one of the two. ``"code"``: ``file.py:name``,
#: whose file must exist, or ``module:name``, which stays as it is. ``"data"``: a file, a folder, a
#: pattern that some file matches, or an address of the hub (``hf://``).
FILE = "plugrl.file"
#: On a field of numbers, or of lists and mappings of numbers: their :class:`Bounds`.
BOUNDS = "plugrl.bounds"
#: On a field of strings: what they are the names of, a :data:`NameKind`.
NAMES = "plugrl.names"
#: What a field may name. Each is looked up before the run: a model in ``models``, a split in the
#: scenario, an agent in the environment or protocol, a column in the first problems, a metric among
#: those that the trainer reports. An optional column is looked up only where somebody chose it.
NameKind = Literal["model", "split", "agent", "metric", "column", "optional column"]
#: On the field of a trainer that holds phases, each a configuration of its own.
PHASES = "plugrl.phases"


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers that a field may hold; None: no bound of its own on that side."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def fault(self, value: float) -> str | None:
        """The bound that ``value`` violates, such as ``must be at least 1``; None: it is within."""
        if self.at_least is not None and value < self.at_least:
            return f"must be {Bounds(at_least=self.at_least)}"
        if self.above is not None and value <= self.above:
            return f"must be {Bounds(above=self.above)}"
        if self.at_most is not None and value > self.at_most:
            return f"must be {Bounds(at_most=self.at_most)}"
        if self.below is not None and value >= self.below:
            return f"must be {Bounds(below=self.below)}"
        return None

    def __str__(self) -> str:
        low = {"at least": self.at_least, "above": self.above}
        high = {"at most": self.at_most, "below": self.below}
        sides = [
            f"{word} {limit:g}" if abs(limit) < 1e6 else f"{word} {limit:,.0f}"
            for word, limit in (*low.items(), *high.items())
            if limit is not None
        ]
        return " and ".join(sides)


def component(
    kind: str,
    default: str | Callable[..., Any] | None = None,
    *,
    many: bool = False,
    help: str = "",
) -> Any:
    """Declare a dataclass field that holds a component of ``kind``.

    Without ``default`` the field is optional and ``None``. With ``many`` it is a list of
    components, empty by default. A default that is a function or class, not a name, is the
    component's own: it needs no registration, and where this field says its ``__name__``, it is
    meant before any other component of that name.
    """
    metadata: dict[str, Any] = {COMPONENT: kind, HELP: help}
    if callable(default):
        metadata[OWN] = default
        default = str(default.__name__)
    if many:
        return dataclasses.field(default_factory=list, metadata=metadata)
    if default is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=lambda: {"type": default}, metadata=metadata)


def described(
    default: Any,
    help: str,
    *,
    file: str | None = None,
    names: NameKind | None = None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare an ordinary field with its help text; a list, dict or class default is copied.

    ``file`` is ``"optional"``, ``"required"``, ``"file"``, ``"folder"``, ``"code"`` or ``"data"``
    for strings that are paths; see :data:`FILE`. ``names`` says what a string names, or each string
    of a list, or of a mapping the texts that are its values, else its keys; a name that is not
    there is refused before the run. The other arguments bound a number, or each number of a list or
    mapping.

    Raises:
        ValueError: ``names`` is no :data:`NameKind`.
    """
    metadata: dict[str, Any] = {HELP: help, FILE: file}
    if names is not None:
        if names not in get_args(NameKind):
            raise ValueError(f"names is {names!r}; it is one of {', '.join(get_args(NameKind))}")
        metadata[NAMES] = names
    if not at_least is above is at_most is below is None:
        metadata[BOUNDS] = Bounds(at_least, above, at_most, below)
    if dataclasses.is_dataclass(default) and isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_bounds(config: Any) -> None:
    """Check the numbers of a dataclass that was built in code; what YAML says was checked before.

    Raises:
        ConfigError: the first number that is outside the bounds of its field.
    """
    for field in dataclasses.fields(config):
        bounds, value = field.metadata.get(BOUNDS), getattr(config, field.name)
        fault = None if bounds is None or value is None else bounds.fault(value)
        if fault is not None:
            raise ConfigError(f"{field.name} is {value}; it {fault}")


def phases(help: str = "") -> Any:
    """Declare the list field of a trainer whose items are configurations, merged over the run's."""
    return dataclasses.field(default_factory=list, metadata={HELP: help, PHASES: True})


def takes_free_keys(component: Any) -> bool:
    """Whether a component may have keys below ``algorithm`` that no schema describes.

    Subclasses of users and of packages may, that inherit their schema; plugrl's own have none.
    """
    own = vars(component) if hasattr(component, "__dict__") else {}
    return "Config" not in own and not str(own.get("__module__")).startswith("plugrl.")


def own_components(schema: type) -> dict[tuple[str, str], Any]:
    """The components that a schema and those within it bring themselves, by kind and name."""
    found: dict[tuple[str, str], Any] = {}
    for field in dataclasses.fields(schema):
        own, section = field.metadata.get(OWN), field.default_factory
        if own is not None:
            found[field.metadata[COMPONENT], own.__name__] = own
        elif isinstance(section, type) and dataclasses.is_dataclass(section):
            found |= own_components(section)
    return found


def to_plain(value: Any) -> Any:
    """Copy a default or a built dataclass to plain values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
