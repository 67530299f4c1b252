"""The ledger of attempts: it proves that none is lost and none is trained twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from plugrl.core.errors import RunError

#: Every state of an attempt with what it means.
ITEM_STATES: Final[dict[str, str]] = {
    "queued": "loaded, and not begun; it begins before anything else is loaded",
    "open": "its rollout runs",
    "pooled": "its trajectories wait in the pool",
    "trained": "its trajectories were taken for a training batch; it is forgotten",
    "left out": "nothing of it can be trained; it is forgotten",
}
#: What may happen to an attempt, as (state, event, next state).
ITEM_TRANSITIONS: Final = (
    ("queued", "start", "open"),
    ("open", "restart", "queued"),
    ("open", "finish", "pooled"),
    ("open", "finish with nothing to train", "left out"),
    ("pooled", "train", "trained"),
    ("pooled", "leave out", "left out"),
    ("pooled", "give back", "queued"),
)
#: Names an attempt: group id and run id.
Key = tuple[str, int]


class Attempt(Protocol):
    """What the ledger needs to know of an attempt."""

    @property
    def group_id(self) -> str:
        """Names the turn of a problem."""

    @property
    def run_id(self) -> int:
        """Which attempt at it."""


P = TypeVar("P", bound=Attempt)


@dataclass(slots=True)
class _Entry(Generic[P]):
    attempt: P
    state: str = "queued"
    models: set[str] = field(default_factory=set)
    trained: bool = False


class Items(Generic[P]):
    """The attempts that were loaded and are not trained yet, in the order of loading."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry[P]] = {}
        self._queued: dict[Key, None] = {}
        self._pending: dict[str, int] = {}
        self.counts = {"restarted": 0, "given_back": 0}

    def load(self, attempts: Iterable[P]) -> None:
        """Queue attempts that are new.

        Raises:
            RunError: one is in the account already.
        """
        for attempt in attempts:
            key = (attempt.group_id, attempt.run_id)
            if key in self._entries:
                raise RunError(f"attempt {key} was loaded twice; a loader gives each one once")
            self._entries[key] = _Entry(attempt)
            self._queue(key)

    def _queue(self, key: Key) -> None:
        self._queued[key] = None
        self._pending[key[0]] = self._pending.get(key[0], 0) + 1

    def pending(self, group_id: str) -> int:
        """Attempts of a group that are queued or open."""
        return self._pending.get(group_id, 0)

    def _count_ended(self, key: Key) -> None:
        self._pending[key[0]] -= 1
        if not self._pending[key[0]]:
            del self._pending[key[0]]

    @property
    def queued(self) -> int:
        """Attempts that wait for their beginning."""
        return len(self._queued)

    def queued_groups(self) -> Iterator[list[P]]:
        """The queued attempts group by group, in the order in which they were queued."""
        groups: dict[str, list[P]] = {}
        for key in self._queued:
            groups.setdefault(key[0], []).append(self._entries[key].attempt)
        yield from groups.values()

    def all_queued(self) -> list[P]:
        """Every queued attempt."""
        return [self._entries[key].attempt for key in self._queued]

    def start(self, attempts: Iterable[P]) -> None:
        """Move attempts from ``queued`` to ``open``."""
        for attempt in attempts:
            key = (attempt.group_id, attempt.run_id)
            self._transition(key, "queued", "open")
            del self._queued[key]

    def restart(self, keys: Iterable[Key]) -> None:
        """Their rollouts were cancelled, and begin again."""
        for key in keys:
            self._transition(key, "open", "queued")
            self._queued[key] = None
            self.counts["restarted"] += 1

    def finish(self, key: Key, models: Collection[str]) -> None:
        """A rollout has ended; trajectories of ``models`` wait in the pool."""
        self._transition(key, "open", "pooled").models.update(models)
        self._count_ended(key)
        if not models:
            del self._entries[key]

    def train(self, keys: Iterable[Key], model: str) -> None:
        """Trajectories of ``model`` were taken for a batch.

        Raises:
            RunError: those of one were taken before.
        """
        for key in set(keys):
            self._settle(key, model, trained=True)

    def leave_out(self, keys: Iterable[Key], model: str) -> None:
        """Trajectories of ``model`` were dropped from the pool for good."""
        for key in set(keys):
            self._settle(key, model, trained=False)

    def give_back(self, keys: Iterable[Key], model: str) -> None:
        """Trajectories of ``model`` are too old, and were dropped: attempt them again.

        What was trained with another model of the same attempt, or still may be, is left out.
        """
        for key in set(keys):
            entry = self._entries.get(key)
            if entry is None or entry.trained or entry.models != {model}:
                self._settle(key, model, trained=False)
                continue
            self._transition(key, "pooled", "queued").models.clear()
            self._queue(key)
            self.counts["given_back"] += 1

    def _settle(self, key: Key, model: str, *, trained: bool) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.state != "pooled" or model not in entry.models:
            raise RunError(
                f"the trajectories of attempt {key} for model {model!r} left the pool twice"
            )
        entry.models.discard(model)
        entry.trained |= trained
        if not entry.models:
            del self._entries[key]

    def _transition(self, key: Key, state: str, target: str) -> _Entry[P]:
        entry = self._entries.get(key)
        if entry is None or entry.state != state:
            now = "unknown" if entry is None else entry.state
            raise RunError(f"attempt {key} is {now}, and only what is {state} can be {target}")
        entry.state = target
        return entry

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def state(self, key: Key) -> str | None:
        """The state of an attempt; None: it is not in the account."""
        entry = self._entries.get(key)
        return None if entry is None else entry.state

    def entries_to_save(self) -> Iterator[tuple[P, str, list[str]]]:
        """Every attempt with its state and its models, for a checkpoint: queued ones first.

        What is open is saved as queued: its rollout cannot be saved, and begins again.
        """
        for key in self._queued:
            yield self._entries[key].attempt, "queued", []
        for entry in self._entries.values():
            if entry.state != "queued":
                state = "queued" if entry.state == "open" else entry.state
                yield entry.attempt, state, sorted(entry.models)

    def restore(self, attempt: P, state: str, models: Iterable[str]) -> None:
        """Take back one of :meth:`entries_to_save`."""
        self.load([attempt])
        key = (attempt.group_id, attempt.run_id)
        if state == "pooled":
            entry = self._entries[key]
            entry.state, entry.models = state, set(models)
            del self._queued[key]
            self._count_ended(key)

    def take_counts(self) -> dict[str, int]:
        """What happened since the last call."""
        counts, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return counts
