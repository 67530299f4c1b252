"""From trajectories with advantages to the datums that a service of named losses takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from plugrl.core.errors import ContractError
from plugrl.core.estimators import k3
from plugrl.core.text.remote.service import Datum, ForwardBackward, NamedLoss, RemoteTrainService
from plugrl.core.text.trajectory import Trajectory


def target_mask(trajectory: Trajectory) -> list[int]:
    """The loss mask of the targets: of all tokens but the first, which nothing predicts."""
    return trajectory.loss_mask[1:]


def advantages_of(trajectory: Trajectory) -> list[float]:
    """The advantage of each token, 0.0 where it is not trained.

    ``token_advantages`` has one number for each trained token, or one for each token; without it
    ``advantage`` is that of all trained tokens.

    Raises:
        ContractError: there is neither, or a number is missing or not finite.
    """
    mask, given = trajectory.loss_mask, trajectory.token_advantages
    if given is None:
        if trajectory.advantage is None:
            raise ContractError(
                f"{_name(trajectory)} has no advantage; write traj['advantage'] = a number, or "
                "traj['token_advantages'] = one number for each trained token"
            )
        given = [float(trajectory.advantage)] * sum(mask)
    given = [float(value) for value in given]
    if len(given) == sum(mask):
        numbers = iter(given)
        given = [next(numbers) if trained else 0.0 for trained in mask]
    elif len(given) != len(mask):
        raise ContractError(
            f"{_name(trajectory)} has {len(given)} token_advantages for {sum(mask)} trained tokens "
            f"of {len(mask)}; one for each of either is expected"
        )
    if not all(math.isfinite(value) for value in given):
        raise ContractError(f"{_name(trajectory)} has an advantage that is not finite")
    return [value if trained else 0.0 for value, trained in zip(given, mask, strict=True)]


def datum_of(trajectory: Trajectory, loss: NamedLoss, weights: Sequence[float]) -> Datum | None:
    """A trajectory as a datum; None: it has no gradient, since nothing is trained or all is 0.

    Args:
        trajectory: with advantages and log-probabilities, if the loss reads them.
        loss: says what it reads.
        weights: of each token in the loss of the whole optimizer step: the datum's ``weights``,
            or what its advantages are multiplied by.

    Raises:
        ContractError: what the loss reads is missing.
    """
    targets = target_mask(trajectory)
    inputs: dict[str, list[float]] = {}
    if "weights" in loss.inputs:
        inputs["weights"] = _mask_values(weights[1:], targets)
    if "advantages" in loss.inputs:
        scaled = [a * w for a, w in zip(advantages_of(trajectory), weights, strict=True)]
        inputs["advantages"] = _mask_values(scaled[1:], targets)
    if not any(value for values in inputs.values() for value in values):
        return None
    if "logprobs" in loss.inputs:
        if trajectory.logprobs is None:
            raise ContractError(f"{_name(trajectory)} has no logprobs, which the loss reads")
        inputs["logprobs"] = _mask_values(trajectory.logprobs[1:], targets)
    tokens = trajectory.tokens
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "mask": targets, **inputs})


def _mask_values(values: Sequence[float], mask: Sequence[int]) -> list[float]:
    return [value if trained else 0.0 for value, trained in zip(values, mask, strict=True)]


def _name(trajectory: Trajectory) -> str:
    return f"the trajectory of group {trajectory.group_id!r}, run {trajectory.run_id}"


def fill_missing_logprobs(
    service: RemoteTrainService, trajectories: Sequence[Trajectory]
) -> list[Trajectory]:
    """The trajectories; those without log-probabilities get those of the current weights."""
    lacking = [t for t in trajectories if t.logprobs is None and len(t.tokens) > 1]
    datums = [
        Datum(t.tokens[:-1], {"target_tokens": t.tokens[1:], "mask": target_mask(t)})
        for t in lacking
    ]
    if not datums:
        return list(trajectories)
    rows = service.fitting(datums, service.forward(datums).result())
    found = {id(t): [0.0, *row] for t, row in zip(lacking, rows, strict=True)}
    return [replace(t, logprobs=found[id(t)]) if id(t) in found else t for t in trajectories]


def sum_metrics(datums: Sequence[Datum], answer: ForwardBackward) -> dict[str, tuple[float, float]]:
    """The service's metrics and what its log-probabilities tell, as (sum, count).

    ``kl_to_sampler`` estimates the divergence from the policy that sampled, as r - 1 - log(r);
    ``log_prob`` is the mean log-probability where the loss reads none of the sampler's.
    """
    trained = np.concatenate([datum.loss_fn_inputs["mask"] for datum in datums]) != 0
    now = np.concatenate(answer.logprobs)[trained]
    if "logprobs" not in datums[0].loss_fn_inputs:
        return {"log_prob": (float(now.sum()), len(now)), **answer.metrics}
    before = np.concatenate([datum.loss_fn_inputs["logprobs"] for datum in datums])[trained]
    divergence = k3(torch.from_numpy(now - before)).sum()
    return {"kl_to_sampler": (float(divergence), len(now)), **answer.metrics}
