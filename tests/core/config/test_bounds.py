"""Each number of a configuration has bounds, and a value outside them is refused in one line."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pytest
from schemas import all_schemas

from plugrl.core.config.check import Checker, hints_of
from plugrl.core.config.coerce import LARGEST
from plugrl.core.config.schemas.schema import BOUNDS, Bounds, check_bounds, described
from plugrl.core.errors import ConfigError

#: Fields in which any number has a meaning.
ANY_NUMBER = {
    "CurriculumConfig.edges": "difficulties are in the unit of a column of the data",
    "TrajectoryTrainerConfig.stop_at": "metrics of users have any unit",
    "RemoteLossConfig.loss_fn_config": "the losses of a service have numbers of their own",
}
#: Fields whose name says their range; see ``coerce.check_size``.
SEEDS = {"seed"}


def is_numeric(hint: Any) -> bool:
    return hint in (int, float) or any(map(is_numeric, get_args(hint)))


def is_whole(hint: Any) -> bool:
    return hint is int or (hint is not float and any(map(is_whole, get_args(hint))))


class Numbers(NamedTuple):
    """A field of a schema that holds numbers."""

    schema: type
    field: dataclasses.Field[Any]
    hint: Any

    @property
    def name(self) -> str:
        return f"{self.schema.__name__}.{self.field.name}"

    @property
    def owners(self) -> set[str]:
        """The field as each class says it that has it: subclasses repeat fields of others."""
        return {f"{base.__name__}.{self.field.name}" for base in self.schema.__mro__}


@functools.cache
def numbers() -> list[Numbers]:
    return [
        Numbers(schema, field, hints_of(schema)[field.name])
        for schema in all_schemas()
        for field in dataclasses.fields(schema)
        if field.init and is_numeric(hints_of(schema)[field.name]) and field.name not in SEEDS
    ]


def test_every_number_has_bounds() -> None:
    assert len(numbers()) > 500
    without = [n for n in numbers() if BOUNDS not in n.field.metadata]
    assert {n.name for n in without if not n.owners & set(ANY_NUMBER)} == set()
    # What is allowed to have none has none.
    assert set().union(*(n.owners & set(ANY_NUMBER) for n in without)) == set(ANY_NUMBER)


def test_every_default_is_within_its_bounds() -> None:
    for number in numbers():
        value: Any = number.field.default
        if number.field.default_factory is not dataclasses.MISSING:
            value = number.field.default_factory()
        items = value.values() if isinstance(value, dict) else value
        bounds = number.field.metadata.get(BOUNDS, Bounds())
        for item in items if isinstance(value, (dict, list)) else [value]:
            if isinstance(item, (int, float)):
                assert bounds.fault(item) is None, number.name


def outside(bounds: Bounds, whole: bool) -> Iterator[tuple[float, str]]:
    """A value just outside each bound, and how the fault of it begins."""

    def next_to(limit: float, sign: int) -> float:
        return int(limit) + sign if whole else math.nextafter(limit, sign * math.inf)

    for name, sign in (("at_least", -1), ("at_most", 1)):
        if (limit := getattr(bounds, name)) is not None:
            yield next_to(limit, sign), f"must be {name.replace('_', ' ')} "
    for name in ("above", "below"):
        if (limit := getattr(bounds, name)) is not None:
            yield (int(limit) if whole else float(limit)), f"must be {name} "


def faults_of(number: Numbers, value: float) -> list[tuple[str, str]]:
    """What the check of a schema says of a value of one field."""
    origins = {getattr(hint, "__origin__", None) for hint in (number.hint, *get_args(number.hint))}
    written: Any = {"a": value} if dict in origins else [value] if list in origins else value
    checker = Checker()
    checker.fields({number.field.name: written}, number.schema, ("section",))
    return [(fault.path, fault.message) for fault in checker.faults]


def test_what_is_outside_is_refused_at_its_key() -> None:
    tried = 0
    for number in numbers():
        if BOUNDS not in number.field.metadata:
            continue
        key = f"section.{number.field.name}"
        for value, words in outside(number.field.metadata[BOUNDS], is_whole(number.hint)):
            said = [
                message
                for path, message in faults_of(number, value)
                if path in (key, f"{key}.a", f"{key}[0]") and message.startswith(words)
            ]
            assert len(said) == 1, (number.name, value, faults_of(number, value))
            assert said[0].endswith(f"not {value}"), said
            assert "\n" not in said[0]
            tried += 1
    assert tried > 800


@pytest.mark.parametrize(
    ("bounds", "within", "beyond"),
    [
        (Bounds(at_least=1), [1, 10**30], [0, -1]),
        (Bounds(above=0), [1e-300], [0.0, -1.0]),
        (Bounds(at_most=1), [1, -5], [1.0000001]),
        (Bounds(below=1), [0.9999999], [1.0]),
        (Bounds(at_least=0, below=0.5), [0.0, 0.4999], [-1e-9, 0.5]),
    ],
)
def test_a_bound_itself_is_within_only_where_it_says_so(
    bounds: Bounds, within: list[float], beyond: list[float]
) -> None:
    assert [bounds.fault(value) for value in within] == [None] * len(within)
    assert all(bounds.fault(value) for value in beyond)


@dataclasses.dataclass
class Made:
    """Built in code, where no check of YAML has been."""

    share: float | None = described(None, "a share", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        check_bounds(self)


def test_what_is_built_in_code_keeps_the_same_bounds() -> None:
    assert (Made().share, Made(0.5).share) == (None, 0.5)
    with pytest.raises(ConfigError, match=r"^share is 1.5; it must be at most 1$"):
        Made(1.5)


def test_no_bound_is_beyond_what_any_number_may_be() -> None:
    for number in numbers():
        bounds = number.field.metadata.get(BOUNDS, Bounds())
        limits = [limit for limit in dataclasses.astuple(bounds) if limit is not None]
        assert all(abs(limit) < LARGEST for limit in limits), number.name
