"""From the rewards of a batch to its advantages, and the contract of functions of advantages.

``metadata["rewards"]`` ([B]) are the rewards of whole trajectories, ``values["token_rewards"]``
([B, T], where there are some) those of single tokens. A reward at a token that is not trained, such
as that of a tool's answer, belongs to the trained token before it.

An advantage is ``f(rewards[R], group[R], run[R], valid[R], batch, config) -> [R] or [R, T]``
over R trajectories: ``group`` numbers the prompts, ``run`` the attempts at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from plugrl.core.errors import ContractError
from plugrl.core.plugins.user_code.error_location import location_suffix
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import check_reads
from plugrl.core.text.trajectory import Trajectory

TOKEN_REWARDS = "token_rewards"


def total_rewards(batch: Batch) -> torch.Tensor:
    """Rewards of whole trajectories with those of their tokens, [B]."""
    rewards: torch.Tensor = batch.metadata["rewards"]
    each = batch.values.get(TOKEN_REWARDS)
    return rewards if each is None else rewards + each.sum(1)


def rewards_of_tokens(batch: Batch) -> torch.Tensor:
    """All rewards at the trained tokens that earned them, [B, T].

    The reward of the whole stands at the last trained token, one of a token that is not trained at
    the last trained token before it, or the first one where there is none. Rows without a trained
    token have no rewards.
    """
    mask = batch.values["loss_mask"] != 0
    earned = torch.zeros(mask.shape, dtype=torch.float32)
    trained = mask.any(1)
    each = batch.values.get(TOKEN_REWARDS)
    if each is not None:
        earned.scatter_add_(1, earning_tokens(mask), each * trained[:, None])
    rows = trained.nonzero().flatten()
    earned[rows, last_trained(mask)[rows]] += batch.metadata["rewards"][rows]
    return earned


def earning_tokens(mask: torch.Tensor) -> torch.Tensor:
    """The trained token that a reward at each place belongs to, [B, T]; 0 where none is trained."""
    places = torch.arange(mask.shape[1]).expand_as(mask)
    before = torch.where(mask, places, -1).cummax(1).values
    first = mask.int().argmax(1, keepdim=True)
    return torch.where(before >= 0, before, first)


def last_trained(mask: torch.Tensor) -> torch.Tensor:
    """The last trained token of each row, [B]; -1 where there is none."""
    places = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask != 0, places, -1).amax(1)


def add_to_tokens(batch: Batch, rewards: torch.Tensor) -> None:
    """Add ``rewards`` ([B, T]) to those of single tokens."""
    each = batch.values.get(TOKEN_REWARDS)
    batch.values[TOKEN_REWARDS] = rewards if each is None else each + rewards


def add_at_the_end(batch: Batch, rewards: torch.Tensor) -> None:
    """Add one reward a row ([B]) at its last trained token; rows without one get none."""
    last = last_trained(batch.values["loss_mask"])
    added = torch.zeros(batch.values["loss_mask"].shape, dtype=torch.float32)
    rows = (last >= 0).nonzero().flatten()
    added[rows, last[rows]] = rewards[rows]
    add_to_tokens(batch, added)


Advantage = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Batch | None, Any], torch.Tensor
]


def group_numbers(keys: Sequence[Any]) -> torch.Tensor:
    """Number equal keys alike, in order of appearance: [R]."""
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.long)


def compute(advantage: Advantage, batch: Batch, config: Any) -> torch.Tensor:
    """Advantages of a batch: [R] or [R, T]; invalid rows get 0.

    Raises:
        ContractError: the batch lacks what the function reads, or it answers with another shape or
            a number that is not finite.
    """
    check_reads(batch, advantage, "advantage")
    valid = batch.metadata["valid"]
    # Copies: a function that changes its arguments in place changes no reward of the batch.
    result = advantage(
        total_rewards(batch).clone(),
        group_numbers(batch.metadata["group_id"]),
        batch.metadata["run_id"].clone(),
        valid.clone(),
        batch,
        config,
    )
    fault = _fault(result, valid, tuple(batch.values["loss_mask"].shape))
    if fault is not None:
        # The place is looked up here alone: it reads the function's source.
        name = getattr(advantage, "__name__", type(advantage).__name__) + location_suffix(advantage)
        raise ContractError(f"advantage {name} returned {fault}")
    keep = valid if result.dim() == 1 else valid[:, None]
    return torch.where(keep, result, 0.0)


def _fault(result: Any, valid: torch.Tensor, shape: tuple[int, ...]) -> str | None:
    """What is wrong with the answer of an advantage function; None: nothing."""
    expected = f"a tensor of shape ({shape[0]},) or {shape} is expected"
    if not isinstance(result, torch.Tensor):
        return f"{type(result).__name__}; {expected}"
    if tuple(result.shape) not in (shape[:1], shape):
        return f"shape {tuple(result.shape)}; {expected}"
    if not bool(torch.isfinite(result[valid]).all()):
        return "a number that is not finite"
    return None


def attach(batch: Batch, advantages: torch.Tensor) -> Batch:
    """Put advantages into ``metadata`` ([R]) and, times the mask, into ``values`` ([R, T])."""
    mask = batch.values["loss_mask"].to(torch.float32)
    per_token = advantages[:, None] * mask if advantages.dim() == 1 else advantages * mask
    batch.values["advantages"] = per_token
    batch.metadata["advantages"] = (
        advantages if advantages.dim() == 1 else per_token.sum(1) / mask.sum(1).clamp_min(1)
    )
    return batch


def signal_metrics(advantages: torch.Tensor) -> dict[str, float]:
    """Metrics of advantages, [R]: their mean size, and the share from which nothing is learned."""
    return {
        "advantage_abs": float(advantages.abs().mean()),
        "zero_advantage": float((advantages == 0).float().mean()),
    }


def mirror(batch: Batch) -> Batch:
    """Give ``values`` the advantages that a trainer wrote into ``metadata`` only.

    What :func:`metadata_fault` finds wrong must be refused before.
    """
    if _only_in_metadata(batch):
        return attach(batch, torch.as_tensor(batch.metadata["advantages"], dtype=torch.float32))
    return batch


def metadata_fault(batch: Batch) -> str | None:
    """What is wrong with the advantages that :func:`mirror` would read; None: nothing."""
    if not _only_in_metadata(batch):
        return None
    rows, written = len(batch), batch.metadata["advantages"]
    shape = tuple(batch.values["loss_mask"].shape)
    expected = f"one number a row, shape ({rows},), or one a token, {shape}, is expected"
    try:
        advantages = torch.as_tensor(written, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        return f"gave metadata['advantages'] as {type(written).__name__}; {expected}"
    if tuple(advantages.shape) in (shape[:1], shape):
        return None
    return f"gave metadata['advantages'] of shape {tuple(advantages.shape)}; {expected}"


def _only_in_metadata(batch: Batch) -> bool:
    return "advantages" not in batch.values and "advantages" in batch.metadata


def for_trajectories(
    advantage: Advantage,
    trajectories: Sequence[Trajectory],
    config: Any,
    batch: Batch | None = None,
) -> list[Trajectory]:
    """Set ``advantage`` on each trajectory, equal to what a batch of them would get.

    Advantages that differ within a trajectory also go to ``token_advantages``, one for each
    trained token. ``batch`` holds the trajectories, where the function reads more of them than
    they have themselves.
    """
    if not trajectories:
        return []
    batch = Batch.from_trajectories(trajectories) if batch is None else batch
    found = compute(advantage, batch, config)
    attached = attach(batch, found)
    means = attached.metadata["advantages"].tolist()
    per_token = attached.values["advantages"].tolist() if found.dim() > 1 else None
    for row, trajectory in enumerate(trajectories):
        trajectory.advantage = means[row]
        trajectory.token_advantages = per_token and [
            value
            for value, trained in zip(per_token[row], trajectory.loss_mask, strict=False)
            if trained
        ]
    return list(trajectories)
