"""The collector of ``fully-async``: attempts begin and end at any time, group by group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plugrl.core.text.schedule.collector import Idle
from plugrl.core.text.schedule.overlapping import OverlappingCollector

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.services import BaseTrainService
    from plugrl.core.text.trajectory import Trajectory

#: Later than any version.
_NEVER = 2**62


class Streaming(OverlappingCollector):
    """``fully-async``: attempts begin whenever the bound allows it, one group after the other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._groups: dict[str, tuple[list[Prompt], list[Trajectory]]] = {}
        self._finished = 0

    def fill(self, trained: Mapping[str, BaseTrainService], step: int) -> list[Trajectory]:
        """Wait for attempts until a training batch is ready; see :class:`TrajectoryCollector`."""
        idle = Idle(self._params, self._pool, trained)
        idle.check()
        loaded = self._params.data.batch_size
        while True:
            self._absorb()
            self._give_back_stale()
            if self._pool.ready():
                urgent = self._urgent()
                if not urgent:
                    return self._take_new()
                self._stream.wait(1, urgent)
                continue
            if self._finished >= loaded:
                self._finished -= loaded
                idle.check()
            self._admit(step, needed=True)
            self._stream.wait(self._missing())

    def _urgent(self) -> list[int]:
        """Open attempts that would be too old to train after the next update.

        A batch is taken only once they have ended. If they were dropped instead, long attempts
        would be lost more often than short ones, and training would favour short answers.
        """
        return next(filter(None, map(self._urgent_of, self._states.models)), [])

    def _urgent_of(self, model: str) -> list[int]:
        ages = self._pool.ages(model)
        incomplete = {g: age.oldest for age in ages if not age.complete for g in age.group_ids}
        began = {
            number: min(self._began[number][model], incomplete.get(prompt.group_id, _NEVER))
            for number, prompt in self._running.items()
        }
        size, bound = self._states.rules.batch_size, self._states.bound(model)
        # Tokens of ``version`` can be trained now and in ``more`` batches after this one; what is
        # as old and does not fit into those would pass the bound.
        for more, version in enumerate(range(bound, self._states.models[model].train)):
            running = [number for number, own in began.items() if own <= version]
            pooled = sum(age.size for age in ages if age.oldest <= version)
            ready = sum(age.size for age in ages if age.complete and age.oldest <= version)
            left = len(running) * self._sizes.per_attempt + pooled - min(size, ready)
            if running and left > size * more:
                return running
        return []

    def _missing(self) -> int:
        """How many attempts must end, at least, before a batch can be ready."""
        size = self._states.rules.batch_size
        missing = min(size - self._pool.complete(name) for name in self._states.models)
        return max(1, missing // self._sizes.per_attempt)

    def start_during_training(self, step: int) -> None:
        """Begin as many attempts as the bound allows while the update is computed."""
        self._admit(step)

    def _admit(self, step: int, *, needed: bool = False) -> None:
        """Begin attempts; ``needed``: at least one group when nothing else is open."""
        pooled = {name: self._pool.waiting(name) for name in self._states.models}
        left = self._sizes.steps - step + (self._states.state == "collecting")
        begun: list[Prompt] = []
        queued = self._items.queued_groups()
        while True:
            group = next(queued, [])
            ahead = len(self._running) + len(begun) + (len(group) or self._loader.repeat)
            waiting = {n: count + ahead * self._sizes.per_attempt for n, count in pooled.items()}
            first = needed and not self._running and not begun
            if not first and not self._states.admits(waiting, batches_left=left):
                break
            if not group:
                group = self._loader.next_group()
                self._items.load(group)
            begun += group
        if begun:
            self._start(begun, step)

    def _absorb(self) -> None:
        ended = self._finished_attempts()
        self._pool_all(ended)
        for prompt, trajectories in ended:
            prompts, own = self._groups.setdefault(prompt.group_id, ([], []))
            prompts.append(prompt)
            own += trajectories
            if not self._items.pending(prompt.group_id):
                del self._groups[prompt.group_id]
                self._finished += 1
                self._loader.observe(prompts, own)
                self._leave_out(self._pool.group_finished(prompt.group_id))
