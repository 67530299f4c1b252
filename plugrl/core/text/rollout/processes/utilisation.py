"""What the processes of rollouts on other machines did with their time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugrl.core.run.records.places import Place
    from plugrl.core.run.records.timeline import Timeline

#: What a process does: it works, waits for answers of models, or has nothing to do.
BUSY, FOR_MODELS, FOR_OTHERS = "busy", "for_models", "for_others"


@dataclass(slots=True)
class _Share:
    """Seconds of one process, and the tokens of the attempts that it finished."""

    seconds: float = 0.0
    busy: float = 0.0
    for_models: float = 0.0
    for_others: float = 0.0
    tokens: int = 0


class Utilisation:
    """Adds up when each process was busy.

    In lockstep each such time is a span of its lane in the timeline.

    Args:
        timeline: of the run.
        places: gives where each process is.
    """

    def __init__(
        self, timeline: Timeline, places: Callable[[], Mapping[int, Mapping[str, str]]]
    ) -> None:
        self._timeline, self._places = timeline, places
        self._shares: defaultdict[int, _Share] = defaultdict(_Share)
        self._busy: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        self._states: dict[int, tuple[str, float]] = {}
        self._began = 0.0

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

    def end(self) -> None:
        """A call has ended."""
        now = self._timeline.now()
        for index in self._places():
            self._shares[index].seconds += now - self._began
        self._busy.clear()
        self._asked.clear()

    def becomes(self, index: int, state: str | None) -> None:
        """What a process of attempts in the background does from now on; None: it is left."""
        now = self._timeline.now()
        before = self._states.pop(index, None)
        if before is not None:
            share, seconds = self._shares[index], now - before[1]
            share.seconds += seconds
            setattr(share, before[0], getattr(share, before[0]) + seconds)
        if state is not None:
            self._states[index] = state, now

    def rows(self) -> list[Place]:
        """What each process is and did, for the list of the run."""
        for index, (state, _) in list(self._states.items()):
            self.becomes(index, state)
        rows: list[Place] = []
        for index, place in self._places().items():
            share = self._shares[index]
            numbers = {name: getattr(share, name) for name in _Share.__slots__}
            rows.append({**place, **{k: round(v, 3) for k, v in numbers.items()}})
        return rows
