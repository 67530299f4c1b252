"""``TrajectoryPool``: finished trajectories wait here until they form a training batch.

A *loaded batch* is what the data gave to attempt at once. Trajectories of one model that agree on
the keys of ``key_list`` are a group; it is complete once it holds ``group_size`` attempts. A group
that can no longer become complete is given up: it counts as complete and is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from plugrl.core.errors import RunError
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.trajectory_columns import pack, unpack

LOADED = "loaded_batch_finished"
REACHED = "batch_size_reached"
BOTH = "batch_size_reached_and_loaded_batch_finished"
#: Names of the readiness rules, ``batch_size`` being another word for ``batch_size_reached``.
RULES = {LOADED: LOADED, REACHED: REACHED, "batch_size": REACHED, BOTH: BOTH}

_Key = tuple[Any, ...]


@dataclass
class _Group:
    """Trajectories that are trained together; ``arrived`` is the place among those of its line."""

    arrived: int
    members: list[Trajectory] = field(default_factory=list)
    attempts: set[tuple[str, int]] = field(default_factory=set)
    given_up: bool = False
    _oldest: tuple[int, int | None] = (0, None)

    def complete(self, size: int) -> bool:
        return self.given_up or len(self.attempts) >= size

    @property
    def oldest(self) -> int | None:
        """The oldest version that sampled a token; kept until a member arrives, as many ask."""
        if self._oldest[0] != len(self.members):
            self._oldest = (len(self.members), oldest_version(self.members))
        return self._oldest[1]


class _Line:
    """The groups of one model, in order of arrival.

    What is asked after every attempt is counted along, so that it takes no longer the more wait.

    Args:
        size: attempts of a complete group.
        id_place: where the key of a group has ``group_id``; None: it has none.

    Attributes:
        loaded: whether its loaded batch has come back.
        waiting: trajectories in all groups.
        ready: trajectories in complete groups.
    """

    def __init__(self, size: int, id_place: int | None) -> None:
        self.groups: dict[_Key, _Group] = {}
        self.loaded = False
        self.waiting = self.ready = 0
        self._size, self._id_place = size, id_place
        self._arrived = 0
        self._by_id: dict[Any, dict[_Key, None]] = {}
        #: Groups that have become complete since somebody asked for them.
        self._completed: dict[_Key, None] = {}

    def add(self, key: _Key, trajectory: Trajectory) -> None:
        """Put a trajectory into its group."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _Group(self._arrived)
            self._arrived += 1
            if self._id_place is not None:
                self._by_id.setdefault(key[self._id_place], {})[key] = None
        before = group.complete(self._size)
        group.members.append(trajectory)
        group.attempts.add((trajectory.group_id, trajectory.run_id))
        self.waiting += 1
        if before:
            self.ready += 1
        elif group.complete(self._size):
            self._complete(key, group)

    def give_up(self, key: _Key) -> bool:
        """Count a group as complete; False: it is anyway."""
        group = self.groups[key]
        if group.complete(self._size):
            return False
        group.given_up = True
        self._complete(key, group)
        return True

    def _complete(self, key: _Key, group: _Group) -> None:
        self.ready += len(group.members)
        self._completed[key] = None

    def remove(self, key: _Key) -> _Group:
        """Take a group out."""
        group = self.groups.pop(key)
        self.waiting -= len(group.members)
        if group.complete(self._size):
            self.ready -= len(group.members)
        self._completed.pop(key, None)
        if self._id_place is not None:
            own = self._by_id[key[self._id_place]]
            del own[key]
            if not own:
                del self._by_id[key[self._id_place]]
        return group

    def keys_of(self, group_id: str) -> list[_Key]:
        """The groups of one group id."""
        return list(self._by_id.get(group_id, ()))

    def take_completed(self) -> dict[_Key, _Group]:
        """The groups that have become complete since the last call, in order of arrival."""
        completed, self._completed = self._completed, {}
        found = {key: self.groups[key] for key in completed}
        return dict(sorted(found.items(), key=lambda entry: entry[1].arrived))

    def trajectories(self) -> list[Trajectory]:
        """Everything that waits."""
        return [t for group in self.groups.values() for t in group.members]


@dataclass(frozen=True, slots=True)
class Age:
    """The oldest version in a group, its size, and the prompts that it has attempts at."""

    oldest: int
    size: int
    group_ids: set[str]
    complete: bool


def oldest_version(trajectories: Iterable[Trajectory]) -> int | None:
    """The oldest version that sampled one of the tokens; None: nothing was sampled."""
    sampled = (v for t in trajectories for v in t.versions or () if v >= 0)
    return min(sampled, default=None)


class TrajectoryPool:
    """Keeps trajectories by model until a training batch of complete groups is ready.

    Safe for use by several threads.

    Args:
        key_list: trajectories that agree on these keys, fields or extra fields, form a group;
            without keys each is a group of its own. Several keys nest: groups that share the
            first key stand together.
        group_size: attempts of a complete group.
        batch_size: trajectories of a training batch, for the rules that wait for it.
        rule: when a batch is ready, a name in :data:`RULES`. ``loaded_batch_finished``: every
            attempt of the loaded batch has come back. ``batch_size_reached``: complete groups
            hold ``batch_size`` trajectories; the batch is the first groups that reach it. Their
            conjunction waits for both and takes everything.
        drop_equal_groups: drop complete groups whose valid rewards are all equal: a group-relative
            advantage learns nothing from them (DAPO, arXiv 2503.14476, dynamic sampling).
        oldest_first: a batch takes the groups with the oldest tokens first, before they get too
            old; else those that arrived first.
    """

    def __init__(
        self,
        key_list: Sequence[str] = ("group_id",),
        *,
        group_size: int = 1,
        batch_size: int = 1,
        rule: str = LOADED,
        drop_equal_groups: bool = False,
        oldest_first: bool = False,
    ) -> None:
        self._key_list = tuple(key_list)
        self._group_size = group_size if key_list else 1
        self._batch_size = batch_size
        self._rule = RULES[rule]
        self._lines: dict[str, _Line] = {}
        self._lock = threading.RLock()
        self._arrived = 0
        self._drop_equal_groups = drop_equal_groups
        self._oldest_first = oldest_first
        self._counts = {"incomplete_groups": 0, "stale": 0}
        if drop_equal_groups:
            self._counts["equal_groups"] = 0

    def put(self, trajectories: Iterable[Trajectory]) -> None:
        """Add finished trajectories.

        Raises:
            RunError: a valid one lacks a key of ``key_list``, or it is no text or number.
        """
        with self._lock:
            for trajectory in trajectories:
                line = self._lines.get(trajectory.model)
                if line is None:
                    line = self._lines[trajectory.model] = self._new_line()
                line.add(self._key(trajectory), trajectory)
                # More of its loaded batch may come, so the rule has to wait for its end again.
                line.loaded = False
                self._arrived += 1

    def _new_line(self) -> _Line:
        place = self._key_list.index("group_id") if "group_id" in self._key_list else None
        return _Line(self._group_size, place)

    def _key(self, trajectory: Trajectory) -> _Key:
        if not self._key_list:
            return (self._arrived,)
        for name in self._key_list:
            # A failed attempt may not have got far enough to set the key; it groups under None.
            if name not in trajectory and trajectory.valid:
                has = ", ".join(sorted(trajectory.keys()))
                raise RunError(
                    f"trajectory_pool.key_list: a trajectory of group {trajectory.group_id!r} has "
                    f"no {name!r}; it has: {has}"
                )
        key = tuple(trajectory.get(name) for name in self._key_list)
        for name, value in zip(self._key_list, key, strict=True):
            # Keys are saved as JSON: a value has to equal itself after a checkpoint is loaded.
            if not (value is None or (isinstance(value, (str, int, float)) and value == value)):
                raise RunError(
                    f"trajectory_pool.key_list: {name!r} of group {trajectory.group_id!r} is "
                    f"{value!r:.60}; a text or a number is needed to group by"
                )
        return key

    def loaded_batch_finished(self) -> list[Trajectory]:
        """Say that every attempt that was loaded has come back, so that no more will come.

        Groups that wait for members of that batch are given up. Where groups reach over loaded
        batches, their keys leave out ``group_id``, and the batch size alone decides, they go on
        waiting.

        Returns:
            Trajectories of groups that were dropped for equal rewards.
        """
        with self._lock:
            over_batches = self._rule == REACHED and "group_id" not in self._key_list
            for line in self._lines.values():
                line.loaded = True
                if not over_batches:
                    self._counts["incomplete_groups"] += sum(map(line.give_up, line.groups))
            return self._drop_equal()

    def group_finished(self, group_id: str) -> list[Trajectory]:
        """Say that every attempt of one group id has come back, where attempts end one by one.

        Groups that wait for more of them are given up, as in :meth:`loaded_batch_finished`.

        Returns:
            Trajectories of groups that were dropped for equal rewards.
        """
        with self._lock:
            for line in self._lines.values():
                given_up = sum(map(line.give_up, line.keys_of(group_id)))
                self._counts["incomplete_groups"] += given_up
            return self._drop_equal()

    def _drop_equal(self) -> list[Trajectory]:
        dropped: list[Trajectory] = []
        if not self._drop_equal_groups:
            return dropped
        for line in self._lines.values():
            for key, group in line.take_completed().items():
                if len({t.total_reward for t in group.members if t.valid}) < 2:
                    dropped += group.members
                    line.remove(key)
                    self._counts["equal_groups"] += 1
        return dropped

    def models(self) -> list[str]:
        """Models that have trajectories waiting."""
        with self._lock:
            return sorted(name for name, line in self._lines.items() if line.groups)

    def __len__(self) -> int:
        with self._lock:
            return sum(line.waiting for line in self._lines.values())

    def waiting(self, model: str) -> int:
        """Trajectories of ``model`` that were not taken yet."""
        with self._lock:
            return self._line(model).waiting

    def trajectories(self) -> list[Trajectory]:
        """Everything that waits."""
        with self._lock:
            return [t for line in self._lines.values() for t in line.trajectories()]

    def complete(self, model: str) -> int:
        """Trajectories of ``model`` in complete groups."""
        with self._lock:
            return self._line(model).ready

    def _line(self, model: str) -> _Line:
        return self._lines.get(model) or self._new_line()

    def _complete(self, model: str) -> dict[_Key, _Group]:
        groups, size = self._line(model).groups, self._group_size
        return {key: group for key, group in groups.items() if group.complete(size)}

    def ready(self, model: str | None = None) -> bool:
        """Whether a batch of ``model`` is ready; without a name, of any model."""
        with self._lock:
            if model is None:
                return any(self.ready(name) for name in self._lines)
            line = self._lines.get(model)
            if line is None or not line.groups:
                return False
            reached = self._rule == LOADED or self.complete(model) >= self._batch_size
            return reached and (self._rule == REACHED or line.loaded)

    def take(self, model: str) -> list[Trajectory]:
        """The ready batch of ``model``: groups in order of arrival, members together.

        Empty when none is ready. What is taken is no longer in the pool.
        """
        with self._lock:
            if not self.ready(model):
                return []
            line = self._lines[model]
            # The other rules train all that a loaded batch gave; this one exactly a batch.
            if self._rule != REACHED:
                taken, line.loaded = list(line.groups), False
            else:
                taken = self._first_groups(model)
            groups = {key: line.remove(key) for key in taken}
            return [t for key in self._nested(groups) for t in groups[key].members]

    def _first_groups(self, model: str) -> list[_Key]:
        taken: list[_Key] = []
        held = 0
        groups = list(self._complete(model).items())
        if self._oldest_first:
            groups.sort(key=lambda entry: -1 if entry[1].oldest is None else entry[1].oldest)
        for key, group in groups:
            if held >= self._batch_size:
                break
            taken.append(key)
            held += len(group.members)
        return taken

    def _nested(self, groups: Iterable[_Key]) -> list[_Key]:
        """Keys in order of arrival, those that share a beginning together."""
        keys = list(groups)
        rank: dict[_Key, int] = {}
        for key in keys:
            for length in range(1, len(key) + 1):
                rank.setdefault(key[:length], len(rank))
        return sorted(keys, key=lambda k: [rank[k[:n]] for n in range(1, len(k) + 1)])

    def drop_older(self, model: str, version: int) -> list[Trajectory]:
        """Drop the groups of ``model`` with a token that was sampled before ``version``.

        Returns:
            The dropped trajectories.
        """
        with self._lock:
            dropped: list[Trajectory] = []
            line = self._line(model)
            for key, group in list(line.groups.items()):
                if group.oldest is not None and group.oldest < version:
                    dropped += line.remove(key).members
            self._counts["stale"] += len(dropped)
            return dropped

    def ages(self, model: str) -> list[Age]:
        """How old each group of ``model`` is that has a sampled token."""
        with self._lock:
            return [
                Age(
                    group.oldest,
                    len(group.members),
                    {t.group_id for t in group.members},
                    complete=group.complete(self._group_size),
                )
                for group in self._line(model).groups.values()
                if group.oldest is not None
            ]

    def describe(self, model: str) -> str:
        """What waits for ``model`` and what its next batch needs, for messages."""
        with self._lock:
            line = self._line(model)
            needs = f", and a batch needs {self._batch_size}" if self._rule != LOADED else ""
            dropped = self._counts.get("equal_groups")
            needs += f"; {dropped} groups were dropped for equal rewards" if dropped else ""
            return (
                f"model {model!r} has {line.waiting} trajectories in {len(line.groups)} groups, "
                f"{self.complete(model)} of them in complete groups of {self._group_size}{needs}"
            )

    def metrics(self) -> dict[str, float]:
        """What waits, and what was given up or dropped since the last call."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
            return {"pool/waiting": float(len(self))} | {
                f"pool/{name}": float(count) for name, count in counts.items()
            }

    def state_dict(self) -> dict[str, Any]:
        """Everything that waits, for a checkpoint."""
        with self._lock:
            return {
                "arrived": self._arrived,
                "lines": {
                    name: {
                        "loaded": line.loaded,
                        "groups": [
                            {
                                "key": list(key),
                                "given_up": group.given_up,
                                "size": len(group.members),
                            }
                            for key, group in line.groups.items()
                        ],
                        "trajectories": pack(line.trajectories()),
                    }
                    for name, line in self._lines.items()
                },
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        with self._lock:
            self._arrived = state["arrived"]
            self._lines = {name: self._restored(line) for name, line in state["lines"].items()}

    def _restored(self, state: Mapping[str, Any]) -> _Line:
        line = self._new_line()
        # Version 0.1 kept the members of each group beside its key.
        packed = state.get("trajectories")
        members = iter(() if packed is None else unpack(packed))
        for group in state["groups"]:
            key = tuple(group["key"])
            for own in group.get("members") or islice(members, group["size"]):
                line.add(key, own if packed is not None else Trajectory(**own))
            if group["given_up"]:
                line.give_up(key)
                line.groups[key].given_up = True
        line.loaded = state["loaded"]
        return line
