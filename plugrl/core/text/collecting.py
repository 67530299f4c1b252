"""Collecting: prompts are attempted and pooled until a training batch is ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    from plugrl.core.text.data import Prompt, PromptLoader
    from plugrl.core.text.pool import TrajectoryPool
    from plugrl.core.text.rollouts import LockstepRollouts
    from plugrl.core.text.sampling import SamplingParams
    from plugrl.core.text.services import BaseTrainService
    from plugrl.core.text.trajectory import Trajectory


class Collector:
    """Fills a pool.

    Args:
        params: the whole configuration.
        loader: gives the prompts.
        rollouts: attempts them.
        pool: gets the trajectories of models that are trained.
        sampling: how answers are sampled.
        columns: columns of the data that trajectories carry along as extra fields.
    """

    def __init__(
        self,
        params: Any,
        loader: PromptLoader,
        rollouts: LockstepRollouts,
        pool: TrajectoryPool,
        sampling: SamplingParams,
        columns: Sequence[str],
    ) -> None:
        self._params = params
        self._loader = loader
        self._rollouts = rollouts
        self._pool = pool
        self._sampling = sampling
        self._columns = columns

    def fill(self, trained: Mapping[str, BaseTrainService], step: int) -> list[Trajectory]:
        """Attempt loaded batches until a training batch is ready.

        Args:
            trained: the train services by model name; what is too old for them is dropped.
            step: what the attempts are for.

        Returns:
            The new trajectories, those of frozen models among them.

        Raises:
            RunError: no group gets complete.
        """
        for name, service in trained.items():
            oldest = service.version - self._params.weight.staleness_threshold
            self._pool.drop_older(name, oldest)
        collected: list[Trajectory] = []
        complete, idle = -1, 0
        while not self._pool.ready():
            before, complete = complete, sum(self._pool.complete(name) for name in trained)
            idle = idle + 1 if complete == before else 0
            if idle == self._params.trajectory_pool.max_idle_batches:
                waiting = "; ".join(self._pool.describe(name) for name in trained)
                raise RunError(
                    f"{idle} loaded batches completed no group, so no training batch gets ready "
                    f"(trajectory_pool): {waiting}"
                )
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

    def _add_columns(self, trajectories: Sequence[Trajectory], prompts: Sequence[Prompt]) -> None:
        data = {prompt.group_id: prompt.data for prompt in prompts}
        for trajectory in trajectories:
            problem = data.get(trajectory.group_id, {})
            for name in self._columns:
                # What a worker gave one attempt stands, whatever another attempt lacks.
                if name not in trajectory and name in problem:
                    trajectory[name] = problem[name]
