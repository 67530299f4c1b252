"""Sampling rollouts in lockstep, each written down as it finishes."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ContractError, PlugrlError, RunError
from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.protocol.nested import nested_rollouts
from plugrl.core.text.rollout.attempts import Attempts, RolloutContext
from plugrl.core.text.rollout.rounds import Round, answer_round
from plugrl.core.text.rollout.time_limits import run_coroutine
from plugrl.core.text.staged.journal import as_plain, from_plain, trajectories_of
from plugrl.core.text.staged.limits import LimitReachedError, Usage
from plugrl.core.text.trajectory import Trajectory

if TYPE_CHECKING:
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.protocol.episode import Episode
    from plugrl.core.text.rollout.task import RolloutTask
    from plugrl.core.text.rollout.worker import RolloutWorker
    from plugrl.core.text.staged.journal import Key, RolloutJournal
    from plugrl.core.text.staged.limits import Meter

#: Plays one attempt and gives its rollouts ``[m, R]``: one, or as many as an algorithm compares.
Play = Callable[["RolloutTask"], Awaitable[NestedArrayDict]]


@dataclass(frozen=True)
class Sampled:
    """The rollouts of some attempts.

    Attributes:
        rollouts: ``[n, R]``, in the order of the prompts; None: not one attempt was valid.
        failures: what is known of the attempts that failed.
        trajectories: of the others, where they are kept.
    """

    rollouts: NestedArrayDict | None
    failures: Sequence[Trajectory]
    trajectories: Sequence[Trajectory] = ()

    def valid(self, what: str) -> NestedArrayDict:
        """The rollouts.

        Raises:
            RunError: there is not one.
        """
        if self.rollouts is None:
            raise RunError(
                f"none of the {len(self.failures)} attempts of {what} is valid; one of the "
                f"failures: {self.failures[0].failure}"
            )
        return self.rollouts


class EpisodeSampler:
    """Plays attempts at problems, all at once, and writes them down.

    Args:
        worker: whose attempts they are.
        services: inference services by model name.
        meter: counts what they cost, and ends them at a limit.
        timeout: seconds that one attempt may take, models left out; None: any number.
        keeps: whether trajectories are kept beside rollouts, for plugins that are told of them.
    """

    def __init__(
        self,
        worker: RolloutWorker,
        services: Mapping[str, InferenceService],
        meter: Meter,
        *,
        timeout: float | None = None,
        keeps: bool = False,
    ) -> None:
        self._keeps = keeps
        self._of_open: dict[Key, list[Trajectory]] = {}
        self._worker = worker
        self._services = services
        self._meter = meter
        self._timeout = timeout

    def rollouts(
        self, task: RolloutTask, episodes: Sequence[Episode], protocol: Protocol
    ) -> NestedArrayDict:
        """The episodes of an attempt as rollouts ``[m, R]``; their trajectories are kept."""
        if self._keeps and not task.is_val:
            said = [each for episode in episodes for each in episode.trajectories()]
            self._of_open[_key_of(task)] = said
        return nested_rollouts(episodes, protocol)

    def sample(
        self,
        prompts: Sequence[Prompt],
        context: RolloutContext,
        play: Play,
        journal: RolloutJournal | None,
    ) -> Sampled:
        """The rollouts of all prompts; those in the journal are not played again.

        What a limit or an error leaves out, is played when the stage begins again.

        Raises:
            LimitReachedError: a limit of ``text_rl`` does not let all of them finish.
            PlugrlError: a fault that must end the run.
        """
        found: dict[Key, _Finished] = {}
        waiting: dict[int, Prompt] = {}
        for number, prompt in enumerate(prompts):
            record = None if journal is None else journal.get(_key(prompt))
            if record is None:
                waiting[number] = prompt
                continue
            self._meter.total.add(Usage(**record["usage"]))
            found[_key(prompt)] = _Finished.of(record)
        failed = self._play(waiting, context, self._recording_worker(play, found, journal))
        finished = [found[_key(prompt)] for prompt in prompts if _key(prompt) in found]
        return Sampled(
            NestedArrayDict.cat([each.rollouts for each in finished]) if finished else None,
            failed,
            # In the order that a resumed run reads them from the journal in.
            [trajectory for key in sorted(found) for trajectory in found[key].trajectories],
        )

    def _play(
        self, prompts: Mapping[int, Prompt], context: RolloutContext, worker: RolloutWorker
    ) -> list[Trajectory]:
        """Play the prompts and give what failed, in their order."""
        services, failed = self._services, dict[int, list[Trajectory]]()
        tokenizers = {name: service.tokenizer for name, service in services.items()}
        attempts = Attempts(worker, tokenizers, TokenLimits.of(services), timeout=self._timeout)
        try:
            round_ = Round(tuple(services), partial(answer_round, services))
            run_coroutine(attempts.run(round_, prompts, context, failed.__setitem__))
        except PlugrlError as error:
            if self._meter.reached is not None:
                raise LimitReachedError(self._meter.reached) from error
            raise
        return [trajectory for number in sorted(failed) for trajectory in failed[number]]

    def _recording_worker(
        self, play: Play, found: dict[Key, _Finished], journal: RolloutJournal | None
    ) -> RolloutWorker:
        """The worker, with attempts that are written down as they finish."""

        async def rollout(task: RolloutTask) -> list[Trajectory]:
            usage = Usage()
            metered = replace(task, ask=self._meter.count_usage(task.ask, usage))
            rollouts = _validate_rollouts(await play(metered))
            key = _key_of(task)
            said = self._of_open.pop(key, [])
            found[key] = _Finished(rollouts, said)
            if journal is not None:
                record: dict[str, Any] = {
                    "usage": usage.state_dict(),
                    "rollouts": as_plain(rollouts),
                }
                if said:
                    record["trajectories"] = [each.state_dict() for each in said]
                # Read back, so that a resumed run goes on with the same values.
                found[key] = _Finished.of(journal.add(key, record))
            return []

        worker: Any = copy.copy(self._worker)
        worker.rollout = rollout
        return worker  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Finished:
    """What an attempt gave."""

    rollouts: NestedArrayDict
    trajectories: list[Trajectory]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Finished:
        return cls(from_plain(record["rollouts"]), trajectories_of(record))


def _key_of(task: RolloutTask) -> Key:
    return task.seed[2], task.run_id


def _key(prompt: Prompt) -> Key:
    return prompt.turn, prompt.run_id


def _validate_rollouts(rollouts: Any) -> NestedArrayDict:
    """What an attempt gave, if it is rollouts.

    Raises:
        ContractError: it is not.
    """
    if not isinstance(rollouts, NestedArrayDict) or len(rollouts.batch_size) != 2:
        kind = getattr(rollouts, "batch_size", type(rollouts).__name__)
        raise ContractError(
            f"an attempt gave {kind}; a NestedArrayDict of batch size (rollouts, rounds) is "
            "expected, as nested_rollouts makes it"
        )
    return rollouts
