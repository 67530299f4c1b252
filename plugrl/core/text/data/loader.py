"""Prompts: read from files or a scenario, in an order that a seed and a position determine."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import DataSetName, find_hub
from plugrl.core.scenario import DataItem, ScenarioInstance
from plugrl.core.text.data.files import place_of_problem, read_files
from plugrl.core.text.data.maps import load_map, map_rows
from plugrl.core.text.inference.chat import answer_fault, answer_text
from plugrl.core.text.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Prompt:
    """One attempt to be made at one problem.

    ``index`` is the problem's place in the data; ``turn`` counts on over epochs, so that a problem
    that comes again draws other random numbers; ``group_id`` names that turn.
    """

    data: DataItem
    index: int
    run_id: int
    group_id: str
    turn: int
    prompt_key: str = "prompt"
    answer_key: str = "answer"


def problems(
    data: Mapping[str, Any],
    split: str,
    scenario: ScenarioInstance | None,
    *,
    section: str = "data",
    general: Mapping[str, Any] | None = None,
) -> Sequence[DataItem]:
    """The problems that a ``data`` section asks for.

    Args:
        data: the section.
        split: of a data set of the hub, or of the scenario.
        scenario: where problems come from when the section names no data.
        section: its path, for messages.
        general: the section ``data``, for the held-out problems of another section: they have its
            data set and its map unless they name their own.

    Raises:
        ConfigError: there are none, or nothing says where they come from.
    """
    general = data if general is None else general
    named = data_set_of(data, general)
    if data["data_files"] and data.get("type", "auto") != "scenario":
        items: Sequence[DataItem] = read_files(data["data_files"])
        origin = ", ".join(map(str, data["data_files"]))
    elif named is not None:
        try:
            items = find_hub().problems(named, split)
        except ConfigError as error:
            raise ConfigError(f"{section}.name: {error}") from error
        origin = f"split {split!r} of data set {named}"
    elif scenario is not None:
        items = scenario.dataset(split)
        origin = f"split {split!r} of scenario {scenario.name!r}"
    else:
        raise ConfigError(
            f"{section}: no data; set {section}.data_files, {section}.name or a scenario"
        )
    function, setting = map_of(data, general, section)
    if function is not None:
        items = list(map_rows(items, load_map(function), setting))
        origin = f"{setting} of {origin}"
    if not items:
        raise ConfigError(f"{section}: {origin} holds no problems; give it at least one")
    return items


def data_set_of(data: Mapping[str, Any], general: Mapping[str, Any]) -> DataSetName | None:
    """The data set of the hub that a section asks for; None: its problems come from elsewhere.

    Args:
        data: the section.
        general: the section ``data``, whose data set one without data of its own has.
    """
    if data.get("name"):
        return DataSetName.of(data) if data.get("type") != "scenario" else None
    if data["data_files"] or not general.get("name") or general.get("type") == "scenario":
        return None
    return DataSetName.of(general)


def map_of(
    data: Mapping[str, Any], general: Mapping[str, Any], section: str
) -> tuple[str | None, str]:
    """The map of a section, and the setting that names it; None: it has none."""
    own = data.get("map")
    return (own, f"{section}.map") if own else (general.get("map"), "data.map")


def filter_items(
    items: Sequence[DataItem], rules: Mapping[str, Sequence[Any]]
) -> Sequence[DataItem]:
    """The problems that every rule keeps, by column.

    A rule of two numbers is a range, ends included; any other lists the values that stay.

    Raises:
        ConfigError: a problem lacks the column, a range meets a value that is no number, or
            nothing is left.
    """
    for column, rule in rules.items():
        require_column(items, column, "data.keep")
        is_range = len(rule) == 2 and all(type(end) in (int, float) for end in rule)
        held = [
            item for item in items if _matches_rule(item[column], rule, column, is_range=is_range)
        ]
        if not held:
            raise ConfigError(
                f"data.keep.{column}: {list(rule)} keeps none of {len(items)} problems"
            )
        items = held
    return items


def _matches_rule(value: Any, rule: Sequence[Any], column: str, *, is_range: bool) -> bool:
    if not is_range:
        return value in rule
    try:
        return bool(rule[0] <= float(value) <= rule[1])
    except (TypeError, ValueError):
        raise ConfigError(
            f"data.keep.{column}: {value!r:.60} is no number, so no range keeps it; list the "
            "values that stay"
        ) from None


def require_answers(items: Sequence[DataItem], column: str) -> None:
    """Look at the answers of all problems, so that a fault is found before the run.

    Raises:
        ConfigError: one holds what is no text.
    """
    for index, item in enumerate(items):
        if column in item and answer_text(item[column]) is None:
            raise ConfigError(
                f"{place_of_problem(item, index)}: {column!r} holds {answer_fault(item[column])}"
                "; leave the problem out, or name another column"
            )


def require_column(items: Sequence[DataItem], column: str, setting: str) -> None:
    """Check that every problem has ``column``.

    Raises:
        ConfigError: one has not; the message lists the columns that it has.
    """
    for number, item in enumerate(items):
        if column not in item:
            raise ConfigError(
                f"{setting}: {place_of_problem(item, number)} has no column {column!r}; "
                f"it has: {', '.join(map(str, item)) or 'nothing'}"
            )


def _content(value: Any) -> str:
    """The text of ``value``, equal in every process: no addresses, no order of sets."""
    try:
        return _ENCODER.encode(dict(value))
    except (TypeError, ValueError):
        # Keys that JSON does not have, or a value that holds itself.
        return _text(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(_text, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return _text(value)


def _text(value: Any) -> str:
    return _ADDRESS.sub("", repr(value))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ENCODER = json.JSONEncoder(default=_plain)


class Order(ABC):
    """Gives the index of one problem after the other, for ever, from a seed and a position."""

    @abstractmethod
    def draw(self) -> tuple[int, int]:
        """The next problem, and how often it was given before."""

    def observe(self, index: int, rewards: Sequence[float]) -> None:
        """Take the rewards of the valid attempts at a problem that was given."""
        return

    def metrics(self) -> dict[str, float]:
        """Metrics that say where the order stands."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position."""


class Epochs(Order):
    """Every problem once an epoch; each epoch is a new permutation, or the order of the data."""

    def __init__(self, size: int, *, shuffle: bool, seed: Sequence[int]) -> None:
        self._size = size
        self._shuffle = shuffle
        self._seed = list(seed)
        self._epoch = 0
        self._position = 0
        self._order = self._permutation()

    def _permutation(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._size))
        generator = np.random.default_rng([*self._seed, self._epoch])
        return [int(i) for i in generator.permutation(self._size)]

    def draw(self) -> tuple[int, int]:
        """The next problem of the epoch, and the epoch."""
        if self._position == self._size:
            self._epoch += 1
            self._position = 0
            self._order = self._permutation()
        self._position += 1
        return self._order[self._position - 1], self._epoch

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position in it."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position."""
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._permutation()


class PromptLoader:
    """Gives batches of prompts for ever, in the order of an :class:`Order`.

    Args:
        items: the problems.
        order: which problem is next; None: epoch by epoch, as ``shuffle`` and ``seed`` say.
        batch_size: problems a batch.
        repeat: attempts at each; they share a group id and differ in run id.
        shuffle: whether an epoch is permuted.
        seed: what the permutations depend on, with the epoch.
        prompt_key: column of the prompt.
        answer_key: column of the reference answer.
    """

    def __init__(
        self,
        items: Sequence[DataItem],
        *,
        order: Order | None = None,
        batch_size: int,
        repeat: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        prompt_key: str = "prompt",
        answer_key: str = "answer",
    ) -> None:
        self._items = items
        self._batch_size = batch_size
        self._repeat = repeat
        self._keys = (prompt_key, answer_key)
        self._order = order or Epochs(len(items), shuffle=shuffle, seed=[seed])

    @property
    def items(self) -> Sequence[DataItem]:
        """The problems."""
        return self._items

    def next_batch(self) -> list[Prompt]:
        """The next ``batch_size`` problems, each ``repeat`` times."""
        return [prompt for _ in range(self._batch_size) for prompt in self.next_group()]

    def next_group(self) -> list[Prompt]:
        """The next problem, ``repeat`` times."""
        index, before = self._order.draw()
        turn = before * len(self._items) + index
        group_id = f"{before}/{index}"
        return attempts(self._items[index], index, turn, group_id, self._repeat, self._keys)

    @property
    def repeat(self) -> int:
        """Attempts at each problem."""
        return self._repeat

    def recreate_prompt(self, index: int, run_id: int, group_id: str, turn: int) -> Prompt:
        """Make a prompt again from the numbers that identify it."""
        return Prompt(self._items[index], index, run_id, group_id, turn, *self._keys)

    def observe(self, prompts: Sequence[Prompt], trajectories: Sequence[Trajectory]) -> None:
        """Tell the order what the valid attempts at the prompts of a batch earned."""
        rewards: dict[str, list[float]] = {}
        for trajectory in trajectories:
            if trajectory.valid:
                rewards.setdefault(trajectory.group_id, []).append(trajectory.reward)
        for group_id, index in {prompt.group_id: prompt.index for prompt in prompts}.items():
            self._order.observe(index, rewards.get(group_id, []))

    def metrics(self) -> dict[str, float]:
        """Metrics that say where the order stands."""
        return self._order.metrics()

    def state_dict(self) -> dict[str, Any]:
        """The position in the data, and a fingerprint of the data."""
        return {
            **self._order.state_dict(),
            "items": len(self._items),
            "fingerprint": self._fingerprint,
        }

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for item in self._items:
            digest.update(_content(item).encode("utf-8", "backslashreplace"))
            digest.update(b"\n")
        return digest.hexdigest()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position.

        Raises:
            ConfigError: the data is not what it was when the position was saved.
        """
        if state["items"] != len(self._items):
            raise ConfigError(
                f"data: the checkpoint was made with {state['items']} problems and there are now "
                f"{len(self._items)}; resume with the same data"
            )
        if state["fingerprint"] != self._fingerprint:
            raise ConfigError(
                "data: the problems differ from those that the checkpoint was made with; resume "
                "with the same data"
            )
        try:
            self._order.load_state_dict(state)
        except KeyError:
            raise ConfigError(
                "data.curriculum: the checkpoint was made with another order of problems; resume "
                "with the same curriculum"
            ) from None


def attempts(
    item: DataItem, index: int, turn: int, group_id: str, repeat: int, keys: tuple[str, str]
) -> list[Prompt]:
    """``repeat`` attempts at one problem."""
    return [Prompt(item, index, run, group_id, turn, *keys) for run in range(repeat)]


def attempts_at_all(
    items: Sequence[DataItem], name: str, repeat: int, keys: tuple[str, str]
) -> list[Prompt]:
    """``repeat`` attempts at each problem, once; group ids are ``<name>/<index>``."""
    return [
        prompt
        for index, item in enumerate(items)
        for prompt in attempts(item, index, index, f"{name}/{index}", repeat, keys)
    ]
