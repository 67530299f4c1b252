"""What the processes of rollouts on other machines did with their time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.run.records.places import write_places

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.run.records.timeline import Timeline

#: Seconds between two writings of the list.
_EVERY = 2.0


@dataclass(slots=True)
class _Share:
    """Seconds of one process, and the tokens of the attempts that it finished."""

    seconds: float = 0.0
    busy: float = 0.0
    for_models: float = 0.0
    for_others: float = 0.0
    tokens: int = 0


class Utilisation:
    """Adds up when each process was busy; each such time is a span of its lane in the timeline.

    Args:
        timeline: of the run.
        folder: of the run.
    """

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline, self._folder = timeline, folder
        self._shares: defaultdict[int, _Share] = defaultdict(_Share)
        self._busy: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        self._began = self._written = 0.0

    def begin(self) -> None:
        """A call begins, and all processes get work."""
        self._began = self._timeline.now()

    def works(self, index: int) -> None:
        """A process has got work or an answer."""
        self._asked.pop(index, None)
        self._busy.setdefault(index, self._timeline.now())

    def waits(self, index: int, step: int) -> None:
        """A process has asked, or has no work left."""
        since, now = self._busy.pop(index, None), self._timeline.now()
        if since is None:
            return
        self._shares[index].busy += now - since
        self._asked[index] = now
        self._timeline.note(f"worker-{index + 1}", "rollout", since, step=step)

    def served(self, began: float, asking: Collection[int]) -> None:
        """A round was answered that began at ``began``: until then, the others were waited for."""
        now = self._timeline.now()
        for index in asking:
            self._shares[index].for_models += now - began
            self._shares[index].for_others += began - self._asked.get(index, began)

    def now(self) -> float:
        """The time, in the units of :meth:`served`."""
        return self._timeline.now()

    def add_tokens(self, index: int, tokens: int) -> None:
        """A process has finished attempts of so many tokens."""
        self._shares[index].tokens += tokens

    def end(self, places: Mapping[int, Mapping[str, str]]) -> None:
        """A call has ended; the list is written now and then."""
        now = self._timeline.now()
        for index in places:
            self._shares[index].seconds += now - self._began
        self._busy.clear()
        self._asked.clear()
        if now - self._written < _EVERY:
            return
        self._written = now
        self.write(places)

    def write(self, places: Mapping[int, Mapping[str, str]]) -> None:
        """Write the list of the run."""
        rows: list[dict[str, Any]] = []
        for index, place in places.items():
            share = self._shares[index]
            numbers = {name: getattr(share, name) for name in _Share.__slots__}
            rows.append({**place, **{k: round(v, 3) for k, v in numbers.items()}})
        write_places(self._folder, rows)
