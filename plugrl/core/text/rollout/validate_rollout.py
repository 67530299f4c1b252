"""What a worker may ask and return: every rule about it, each fault named with its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.rollout.failures import (
    UnfitTrajectoryError,
    add_location,
    place_of,
    worker_label,
)
from plugrl.core.text.trajectory import ROUNDING, WRITTEN, Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.inference.requests import GenerationRequest
    from plugrl.core.text.rollout.worker import RolloutWorker


def validate_trajectories(
    worker: RolloutWorker, result: object, limits: Mapping[str, TokenLimits]
) -> list[Trajectory]:
    """Copies of the trajectories that ``worker`` returned, which may go on with its own.

    Raises:
        UnfitTrajectoryError: the parts of one do not fit; its attempt is invalid.
        RunError: one breaks a rule that all its attempts would break.
    """
    trajectories: list[Trajectory] = []
    for trajectory in result if isinstance(result, list) else [result]:
        if not isinstance(trajectory, Trajectory):
            kind = type(trajectory).__name__
            raise contract_error(
                worker,
                f"returned {kind}; a Trajectory or a list of them is expected, made of the sampled "
                "tokens: answer = await task.ask(model, prompt, task.sampling), then "
                "trajectory_of(task, model, prompt, answer)",
            )
        try:
            trajectory.check()
        except ValueError as error:
            raise UnfitTrajectoryError(f"returned what does not fit: {error}") from error
        fault = (
            _limits_fault(trajectory, limits)
            or logprobs_fault(trajectory)
            or numbers_fault(trajectory)
            or _unsampled_fault(trajectory)
        )
        if fault:
            raise contract_error(worker, fault)
        trajectories.append(trajectory.clone())
    return trajectories


def check_request(
    worker: RolloutWorker, model: str, request: GenerationRequest, limits: Mapping[str, TokenLimits]
) -> None:
    """Check a request before it is gathered with those of others.

    Raises:
        RunError: there is no such model.
        ConfigError: the prompt does not fit the model.
    """
    own, prompt = limits.get(model), request.prompt_tokens
    if own is None:
        known = ", ".join(sorted(limits))
        raise contract_error(
            worker, f"asked a model that is not there: no model {model!r}; models are: {known}"
        )
    if len(prompt) + min(request.sampling.max_new_tokens, 1) > own.context:
        raise ConfigError(
            f"a prompt of {len(prompt)} tokens fills the context of model {model!r} "
            f"({own.context} tokens); lower rollout_worker.max_prompt_length"
        )
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < own.vocabulary:
            raise ConfigError(
                f"a prompt has token {token}, outside the vocabulary of model {model!r} "
                f"({own.vocabulary} tokens)"
            )


def contract_error(worker: RolloutWorker, fault: str) -> RunError:
    """The error that says what ``worker`` did and where it stands."""
    return RunError(f"{worker_label(worker)} {fault}{place_of(worker)}")


def _limits_fault(trajectory: Trajectory, limits: Mapping[str, TokenLimits]) -> str | None:
    own, model = limits.get(trajectory.model), trajectory.model
    if own is None:
        known = ", ".join(sorted(limits))
        return f"returned a trajectory of model {model!r}; models are: {known}"
    if max(trajectory.tokens) >= own.vocabulary:
        return (
            f"returned a trajectory with token {max(trajectory.tokens)}, outside the "
            f"vocabulary of model {model!r} ({own.vocabulary} tokens)"
        )
    if len(trajectory.tokens) > own.context:
        return (
            f"returned a trajectory of {len(trajectory.tokens)} tokens, more than the context of "
            f"model {model!r} ({own.context} tokens); end it earlier"
        )
    return None


def _unsampled_fault(trajectory: Trajectory) -> str | None:
    """The fault of a trained token that no model sampled.

    Its ratio to the sampler would be made of a log-probability that nobody measured. Only a
    demonstration, which says that it was written, is trained on such tokens.
    """
    if trajectory.finish_reason == WRITTEN or not trajectory.valid:
        return None
    versions, mask = trajectory.versions, trajectory.loss_mask
    remedy = (
        "mask it with 0, build the trajectory with trajectory_of, or give it the finish_reason "
        f"{WRITTEN!r} if it was written and not sampled"
    )
    if versions is None:
        if 1 not in mask:
            return None
        return f"returned a trajectory that trains tokens without the versions of them; {remedy}"
    if min(compress(versions, mask), default=0) >= 0:
        return None
    for position, (version, trained) in enumerate(zip(versions, mask, strict=True)):
        if trained and version < 0:
            return (
                f"returned a trajectory that trains token {position}, which no model sampled "
                f"(versions[{position}] is {version}); {remedy}"
            )
    return None


def logprobs_fault(trajectory: Trajectory) -> str | None:
    """What is wrong with log-probabilities that are finite; None: nothing."""
    highest = max(trajectory.logprobs or (), default=0.0)
    if highest <= ROUNDING:
        return None
    return (
        f"returned a trajectory with a log-probability of {highest:g}, above 0; give the "
        "log-probabilities of the answer, not probabilities and not their negatives"
    )


def numbers_fault(trajectory: Trajectory) -> str | None:
    """What is wrong with numbers that a worker gave, those of tokens left out; None: nothing."""
    if not _is_number(trajectory.reward):
        kind = type(trajectory.reward).__name__
        return f"returned a trajectory with a reward of type {kind}; a number is expected"
    temperature: Any = trajectory.temperature
    if temperature is not None and not (
        isinstance(temperature, (int, float)) and 0 < temperature < float("inf")
    ):
        return (
            f"returned a trajectory with temperature {temperature!r:.40}; the one that its "
            "log-probabilities belong to is expected, a number above 0, or None for the worker's"
        )
    metrics: Any = trajectory.metrics
    if not isinstance(metrics, Mapping):
        kind = type(metrics).__name__
        return f"returned a trajectory with metrics of type {kind}; a dict of numbers is expected"
    for name, value in metrics.items():
        if not _is_number(value):
            kind = type(value).__name__
            return (
                f"returned a trajectory with metric {name!r} of type {kind}; a number is expected"
            )
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return True
    if isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


# ---------------------------------------------- where trajectories come from, attempt by attempt

Name = TypeVar("Name")
Owner = TypeVar("Owner")
#: Names whose owners are remembered; those of groups that are long trained are forgotten.
_REMEMBERED = 20_000
_REMEDY = "give trajectories group_id=task.group_id and run_id=task.run_id, as trajectory_of does"


class Attribution:
    """Refuses trajectories of which one number makes comparisons of rewards wrong.

    No single attempt shows it: one group for several prompts, or one run for several attempts,
    compares what is not comparable, and nothing fails.

    Args:
        worker: whose trajectories they are.
        newest: the version that a model's weights have come to, by its name; None: unknown.
    """

    def __init__(self, worker: RolloutWorker, newest: Callable[[str], int | None]) -> None:
        self._worker = worker
        self._newest = newest
        self._prompts: dict[str, str] = {}
        self._attempts: dict[tuple[str, int], tuple[str, int]] = {}

    def check(self, prompt: Prompt, trajectories: Sequence[Trajectory]) -> None:
        """Check what one attempt at ``prompt`` came to.

        Raises:
            RunError: a group or run is that of another prompt or attempt, or a token was sampled
                by weights that are not there yet.
        """
        for trajectory in trajectories:
            fault = self._names_fault(prompt, trajectory) or self._version_fault(trajectory)
            if fault is not None:
                error = contract_error(self._worker, f"returned a trajectory {fault}")
                raise add_location(error, self._worker, prompt)

    def _names_fault(self, prompt: Prompt, trajectory: Trajectory) -> str | None:
        group, run = trajectory.group_id, trajectory.run_id
        for name, value, kind in (("group_id", group, str), ("run_id", run, int)):
            if type(value) is not kind:
                return f"with {name} {value!r:.40}, which is no {kind.__name__}; {_REMEDY}"
        own = (prompt.group_id, prompt.run_id)
        owner = _owner(self._prompts, group, prompt.group_id)
        if owner != prompt.group_id:
            return (
                f"of group {group!r} for prompt {prompt.group_id!r}, and one for prompt {owner!r} "
                f"is of it too, so that rewards of different prompts are compared; {_REMEDY}"
            )
        attempt = _owner(self._attempts, (group, run), own)
        if attempt != own:
            return (
                f"of run {run} for attempt {own[1]} at prompt {own[0]!r}, and one of attempt "
                f"{attempt[1]} is of it too, so that both count as one; {_REMEDY}"
            )
        return None

    def _version_fault(self, trajectory: Trajectory) -> str | None:
        newest = self._newest(trajectory.model)
        latest = max(trajectory.versions or (), default=-1)
        if newest is None or latest <= newest:
            return None
        return (
            f"with version {latest} of model {trajectory.model!r}, which has come to version "
            f"{newest}; take the versions of the answer, as trajectory_of does"
        )


def _owner(owners: dict[Name, Owner], name: Name, own: Owner) -> Owner:
    """Whose ``name`` is: that of the first who came with it."""
    owner = owners.setdefault(name, own)
    if len(owners) > _REMEMBERED:
        del owners[next(iter(owners))]
    return owner
