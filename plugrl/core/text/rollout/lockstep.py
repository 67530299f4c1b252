"""Lockstep rollouts: all open rollouts advance together, one round of requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.rollout.attempts import Attempts, RolloutContext
from plugrl.core.text.rollout.rounds import Round, answer_round
from plugrl.core.text.rollout.stream import AttemptStream, LocalStream, Spent
from plugrl.core.text.rollout.time_limits import run_coroutine
from plugrl.core.text.rollout.validate_rollout import Attribution
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.rollout.processes.lockstep import PooledRollouts


class LockstepRollouts:
    """Runs a worker over prompts so that equal seeds give equal trajectories.

    :meth:`stream` gives up on that, and runs them in the background instead.

    Args:
        worker: turns a task into trajectories.
        services: inference services by model name.
        seed: the run's seed.
        pooled: processes that run the worker; None: it runs here.
        timeout: seconds that one attempt may take; None: any number.
        newest: the version that a model's weights have come to, by its name; None: unknown.

    Attributes:
        attribution: checks what attempts of :meth:`stream` come to, as :meth:`collect` does.
    """

    def __init__(
        self,
        worker: RolloutWorker,
        services: Mapping[str, InferenceService],
        seed: int,
        *,
        pooled: PooledRollouts | None = None,
        timeout: float | None = None,
        newest: Callable[[str], int | None] = lambda model: None,
    ) -> None:
        self._services = services
        self._seed = seed
        self._pooled = pooled
        self.worker = worker
        self.attribution = Attribution(worker, newest)
        self._timeout = timeout
        self._attempts = self._make_attempts()

    def _make_attempts(self) -> Attempts:
        services = self._services
        return Attempts(
            self.worker,
            {name: service.tokenizer for name, service in services.items()},
            TokenLimits.of(services),
            timeout=self._timeout,
        )

    def stream(self, spent: Spent | None = None) -> AttemptStream:
        """Run attempts in the background; :meth:`collect` must not be called while some are open.

        Args:
            spent: told how long attempts that began together took.
        """
        if self._pooled is not None:
            return self._pooled.stream(spent)
        return LocalStream(self._make_attempts(), self._services, spent)

    def collect(
        self,
        prompts: Sequence[Prompt],
        step: int,
        sampling: SamplingParams,
        *,
        is_val: bool = False,
    ) -> list[Trajectory]:
        """Attempt every prompt; trajectories come in the order of the prompts.

        Raises:
            PlugrlError: a worker, service or evaluator named a fault that must end the run. Any
                other failure of one attempt gives an invalid trajectory.
        """
        context = RolloutContext(self._seed, step, sampling, is_val)
        if self._pooled is not None:
            found = self._pooled.collect(prompts, context)
        else:
            found = self._collect_here(prompts, context)
        for number, prompt in enumerate(prompts):
            self.attribution.check(prompt, found[number])
        return [trajectory for number in range(len(prompts)) for trajectory in found[number]]

    def _collect_here(
        self, prompts: Sequence[Prompt], context: RolloutContext
    ) -> dict[int, list[Trajectory]]:
        found: dict[int, list[Trajectory]] = {}
        round_ = Round(tuple(self._services), partial(answer_round, self._services))
        attempts = self._attempts.run(round_, dict(enumerate(prompts)), context, found.__setitem__)
        run_coroutine(attempts)
        return found

    def metrics(self) -> dict[str, float]:
        """What happened to worker processes since the last call."""
        return {} if self._pooled is None else self._pooled.metrics()
