"""What a worker may ask and return: every rule about it, each fault named with its code."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import TYPE_CHECKING

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.rollout.failures import (
    UnfitTrajectoryError,
    logprobs_fault,
    numbers_fault,
    place_of,
    worker_label,
)
from plugrl.core.text.rollout.token_limits import TokenLimits
from plugrl.core.text.trajectory import WRITTEN, Trajectory

if TYPE_CHECKING:
    from plugrl.core.text.inference.generation import GenerationRequest
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
        trajectories.append(trajectory.copied())
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
