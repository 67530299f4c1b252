"""Collectors whose attempts run in the background while the trainer trains."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.text.rollout.attempts import RolloutContext
from plugrl.core.text.rollout.metrics import Means
from plugrl.core.text.schedule.collector import Idle, TrajectoryCollector
from plugrl.core.text.schedule.items import Items, Key
from plugrl.core.text.schedule.state_machine import CONTINUE, RESTART, WeightStates

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt, PromptLoader
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.inference.services import BaseTrainService
    from plugrl.core.text.rollout.stream import AttemptStream
    from plugrl.core.text.schedule.pool import TrajectoryPool
    from plugrl.core.text.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that bound how many attempts are begun.

    Attributes:
        steps: training steps of the whole training.
        per_attempt: trajectories that an attempt is expected to give.
    """

    steps: int
    per_attempt: int = 1


class OverlappingCollector(TrajectoryCollector):
    """Fills a pool from a stream of attempts.

    Args:
        params, loader, pool, sampling, columns: see :class:`TrajectoryCollector`.
        stream: runs the attempts.
        states: says when they may begin.
        sizes: how many there may be.
        check: refuses what an attempt came to.
    """

    overlaps = True

    def __init__(
        self,
        params: Any,
        loader: PromptLoader,
        pool: TrajectoryPool,
        sampling: SamplingParams,
        columns: Sequence[str],
        *,
        stream: AttemptStream,
        states: WeightStates,
        sizes: Sizes,
        check: Callable[[Prompt, Sequence[Trajectory]], None] = lambda *_: None,
    ) -> None:
        super().__init__(params, loader, pool, sampling, columns)
        self._stream = stream
        self._states = states
        self._sizes = sizes
        self._check = check
        self._items: Items[Prompt] = Items()
        self._running: dict[int, Prompt] = {}
        self._began: dict[int, Mapping[str, int]] = {}
        self._untold: list[Trajectory] = []
        self._numbers = 0
        self._foreign = False
        self._gaps: dict[str, float] = {}

    # -- attempts -----------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """Attempts that are open."""
        return self._stream.open

    def _start(self, prompts: Sequence[Prompt], step: int) -> None:
        self._items.start(prompts)
        numbered = dict(enumerate(prompts, self._numbers))
        self._numbers += len(prompts)
        versions = {name: own.sampler for name, own in self._states.models.items()}
        self._running |= numbered
        self._began |= dict.fromkeys(numbered, versions)
        context = RolloutContext(self._params.seed, step, self._sampling, is_val=False)
        self._stream.start(numbered, context)

    def _finished_attempts(self) -> list[tuple[Prompt, list[Trajectory]]]:
        """Attempts that have ended, in the order in which they began."""
        ended = []
        for number, trajectories in sorted(self._stream.results(), key=lambda result: result[0]):
            prompt = self._running.pop(number)
            del self._began[number]
            self._check(prompt, trajectories)
            key, trained = (prompt.group_id, prompt.run_id), self._states.models
            pooled = [t for t in trajectories if t.model in trained]
            # A worker may give a trajectory to another group; nobody knows its prompt then.
            self._foreign |= any(_key(t) != key for t in pooled)
            self._items.finish(key, {t.model for t in pooled if _key(t) == key})
            self._untold += trajectories
            ended.append((prompt, trajectories))
        return ended

    def _pool_all(self, ended: Sequence[tuple[Prompt, list[Trajectory]]]) -> None:
        for prompt, trajectories in ended:
            self._add_columns(trajectories, [prompt])
        trained = self._states.models
        self._pool.put(t for _, own in ended for t in own if t.model in trained)

    @abstractmethod
    def _absorb(self) -> None:
        """Move the attempts that have ended into the pool."""

    def _take_new(self) -> list[Trajectory]:
        told, self._untold = self._untold, []
        return told

    def _leave_out(self, dropped: Iterable[Trajectory]) -> None:
        for name, keys in self._by_model(dropped).items():
            self._items.leave_out(keys, name)

    def _give_back_stale(self) -> None:
        for name in self._states.models:
            dropped = self._pool.drop_older(name, self._states.bound(name))
            for model, keys in self._by_model(dropped).items():
                self._items.give_back(keys, model)

    def _by_model(self, trajectories: Iterable[Trajectory]) -> dict[str, set[Key]]:
        found: dict[str, set[Key]] = {}
        for t in trajectories:
            if not self._foreign or self._items.state(_key(t)) == "pooled":
                found.setdefault(t.model, set()).add(_key(t))
        return found

    # -- steps --------------------------------------------------------------------------------

    def take(self) -> dict[str, list[Trajectory]]:
        """The ready batches by model."""
        batches = {name: own for name, own in super().take().items() if own}
        gaps = {
            name: [
                self._states.models[name].train - version
                for t in own
                if t.valid
                for version, trained in zip(t.versions or (), t.loss_mask, strict=False)
                if trained and version >= 0
            ]
            for name, own in batches.items()
        }
        self.oldest = {n: self._states.models[n].train - max(own) for n, own in gaps.items() if own}
        for name, own in batches.items():
            for keys in self._by_model(own).values():
                self._items.train(keys, name)
        self._gaps = _summary(gaps, several=len(self._states.models) > 1)
        return batches

    def before_sync(self) -> None:
        """Let the open attempts end, or restart them, as ``weight.in_flight`` says."""
        if self._states.must_drain:
            self.wait_until_idle()
        elif self._states.rules.in_flight == RESTART:
            self._restart(list(self._running))
        elif self._states.rules.in_flight == CONTINUE:
            self._restart([n for n, began in self._began.items() if self._overdue(began)])

    def _overdue(self, began: Mapping[str, int]) -> bool:
        return any(self._states.overdue(name, version) for name, version in began.items())

    def _restart(self, numbers: Sequence[int]) -> None:
        for number in self._stream.cancel(numbers):
            prompt = self._running.pop(number)
            del self._began[number]
            self._items.restart([(prompt.group_id, prompt.run_id)])

    def wait_until_idle(self) -> None:
        """Wait for all open attempts, and let go of the worker processes."""
        # Read once: attempts end in another thread, and the machine must see one number.
        still_open = self._stream.open
        if still_open:
            self._states.drain(still_open)
            self._stream.wait(len(self._running))
            self._states.drained(self._stream.open)
        self._absorb()
        self._stream.yield_workers()

    def metrics(self) -> dict[str, float]:
        """Version gaps of the trained tokens, and what was restarted or given back."""
        counts = {f"sync/{name}": float(n) for name, n in self._items.take_counts().items()}
        return self._gaps | counts | {"sync/open": float(self._stream.open)}

    def close(self) -> None:
        """Give up the open attempts; within a bounded time."""
        self._states.close()
        self._stream.close()

    # -- checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Every attempt that was loaded and is not trained; open ones begin again."""
        return {
            "attempts": [
                [p.index, p.run_id, p.group_id, p.turn, state, models]
                for p, state, models in self._items.entries_to_save()
            ],
            "untold": [list(_key(t)) for t in self._untold],
            "foreign": self._foreign,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; the pool has its own back already."""
        for index, run_id, group_id, turn, where, models in state.get("attempts", ()):
            prompt = self._loader.recreate_prompt(index, run_id, group_id, turn)
            self._items.restore(prompt, where, models)
        untold = {tuple(key) for key in state.get("untold", ())}
        self._untold = [t for t in self._pool.trajectories() if _key(t) in untold]
        self._foreign = bool(state.get("foreign", False))


class BatchAhead(OverlappingCollector):
    """The collector of ``batch-async``: attempts the next loaded batch while one is trained."""

    def fill(self, trained: Mapping[str, BaseTrainService], step: int) -> list[Trajectory]:
        """Wait for loaded batches until a training batch is ready."""
        self._give_back_stale()
        idle = Idle(self._params, self._pool, trained)
        while not self._pool.ready():
            idle.check()
            if not self._running:
                self._start_batch(step)
            self._stream.wait(len(self._running))
            self._absorb()
        return self._take_new()

    def _start_batch(self, step: int) -> None:
        # Attempts that a checkpoint or the bound gave back are a batch of their own.
        if not self._items.queued:
            self._items.load(self._loader.next_batch())
        self._start(self._items.all_queued(), step)

    def start_during_training(self, step: int) -> None:
        """Begin the next batch if the sampler is near enough to the weights that train it."""
        last = step >= self._sizes.steps
        if not last and not self._pool.ready() and self._states.admits_batch(len(self._running)):
            self._start_batch(step + 1)

    def _absorb(self) -> None:
        if self._stream.open or not self._running:
            return
        ended = self._finished_attempts()
        everything = [t for _, own in ended for t in own]
        self._loader.observe([prompt for prompt, _ in ended], everything)
        self._pool_all(ended)
        self._leave_out(self._pool.loaded_batch_finished())


def _key(trajectory: Trajectory) -> Key:
    return trajectory.group_id, trajectory.run_id


def _summary(gaps: Mapping[str, Sequence[int]], *, several: bool) -> dict[str, float]:
    """The largest and the mean gap of each model's trained tokens, by the name of a metric."""
    summary: dict[str, float] = {}
    for name, own in gaps.items():
        middle = f"{name}/" if several else ""
        means = Means()
        means.add({"staleness_mean": (float(sum(own)), float(len(own)))})
        summary |= means.means(f"sync/{middle}")
        summary[f"sync/{middle}staleness_max"] = float(max(own, default=0))
    return summary
