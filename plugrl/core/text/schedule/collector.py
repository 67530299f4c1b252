"""The base of collectors: they attempt prompts and pool trajectories until a batch is ready."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt, PromptLoader
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.inference.services import BaseTrainService
    from plugrl.core.text.rollout.lockstep import LockstepRollouts
    from plugrl.core.text.schedule.pool import TrajectoryPool
    from plugrl.core.text.trajectory import Trajectory


class TrajectoryCollector(ABC):
    """Fills a pool with attempts, until training batches are ready.

    Args:
        params: the whole configuration.
        loader: gives the prompts.
        pool: gets the trajectories of models that are trained.
        sampling: how answers are sampled.
        columns: columns of the data that trajectories carry along as extra fields.
    """

    #: Whether attempts run while the trainer does something else.
    overlaps: ClassVar[bool] = False

    def __init__(
        self,
        params: Any,
        loader: PromptLoader,
        pool: TrajectoryPool,
        sampling: SamplingParams,
        columns: Sequence[str],
    ) -> None:
        self._params = params
        self._loader = loader
        self._pool = pool
        self._sampling = sampling
        self._columns = columns
        #: The oldest version of a trained token of each model in what was taken last, if known.
        self.oldest: Mapping[str, int] = {}

    @abstractmethod
    def fill(self, trained: Mapping[str, BaseTrainService], step: int) -> list[Trajectory]:
        """Attempt prompts until a training batch is ready.

        Args:
            trained: the train services by model name; what is too old for them is dropped.
            step: what the attempts are for.

        Returns:
            The new trajectories, those of frozen models among them.

        Raises:
            RunError: no group gets complete.
        """

    def take(self) -> dict[str, list[Trajectory]]:
        """The ready batches by model."""
        return {name: self._pool.take(name) for name in self._pool.models()}

    def start_during_training(self, step: int) -> None:
        """Begin what may run while the batch just taken is trained."""
        return

    def before_sync(self) -> None:
        """Finish, cancel or keep open attempts before the sampler gets new weights."""
        return

    def wait_until_idle(self) -> None:
        """Wait for all open attempts, so that a validation has the sampler to itself."""
        return

    @property
    def open(self) -> int:
        """The number of open attempts."""
        return 0

    def metrics(self) -> dict[str, float]:
        """Metrics of what happened since the last call."""
        return {}

    def close(self) -> None:
        """End what runs in the background."""
        return

    def state_dict(self) -> dict[str, Any]:
        """The attempts that were loaded and are neither pooled nor trained yet."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; the pool has been restored already."""
        return

    def _add_columns(self, trajectories: Sequence[Trajectory], prompts: Sequence[Prompt]) -> None:
        data = {prompt.group_id: prompt.data for prompt in prompts}
        for trajectory in trajectories:
            problem = data.get(trajectory.group_id, {})
            for name in self._columns:
                # What a worker gave one attempt stands, whatever another attempt lacks.
                if name not in trajectory and name in problem:
                    trajectory[name] = problem[name]


class LockstepCollector(TrajectoryCollector):
    """The collector of ``sync``: attempts one loaded batch after the other, and nothing else.

    Args:
        rollouts: attempts the prompts.
    """

    def __init__(self, *args: Any, rollouts: LockstepRollouts) -> None:
        super().__init__(*args)
        self._rollouts = rollouts

    def fill(self, trained: Mapping[str, BaseTrainService], step: int) -> list[Trajectory]:
        """Attempt loaded batches until a training batch is ready."""
        for name, service in trained.items():
            oldest = service.version - self._params.weight.staleness_threshold
            self._pool.drop_older(name, oldest)
        collected: list[Trajectory] = []
        idle = Idle(self._params, self._pool, trained)
        # Several loaded batches may be needed: failed attempts leave groups incomplete.
        while not self._pool.ready():
            idle.check()
            batch = self._load(step)
            self._pool.put(t for t in batch if t.model in trained)
            self._pool.loaded_batch_finished()
            collected += batch
        return collected

    def _load(self, step: int) -> list[Trajectory]:
        prompts = self._loader.next_batch()
        batch = self._rollouts.collect(prompts, step, self._sampling)
        self._loader.observe(prompts, batch)
        self._add_columns(batch, prompts)
        return batch


class Idle:
    """Ends a run whose loaded batches complete no groups, instead of letting it load for ever.

    Args:
        params: the whole configuration.
        pool: has the groups.
        trained: names of the trained models.
    """

    def __init__(self, params: Any, pool: TrajectoryPool, trained: Iterable[str]) -> None:
        self._limit = params.trajectory_pool.max_idle_batches
        self._pool = pool
        self._trained = list(trained)
        self._complete, self._idle = -1, 0

    def check(self) -> None:
        """Count the complete groups; to be called before each loaded batch.

        Raises:
            RunError: too many in a row have completed no group.
        """
        before, self._complete = self._complete, sum(map(self._pool.complete, self._trained))
        self._idle = self._idle + 1 if self._complete == before else 0
        if self._idle == self._limit:
            waiting = "; ".join(map(self._pool.describe, self._trained))
            raise RunError(
                f"{self._idle} loaded batches completed no group, so no training batch gets ready "
                f"(trajectory_pool): {waiting}"
            )
