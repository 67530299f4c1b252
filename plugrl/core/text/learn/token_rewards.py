"""Where in a sequence rewards are earned, and what is added to them before they become advantages.

``metadata["rewards"]`` ([B]) are the rewards of whole trajectories, ``values["token_rewards"]``
([B, T], where there are some) those of single tokens. A reward at a token that is not trained, such
as that of a tool's answer, belongs to the trained token before it.
"""

from __future__ import annotations

import torch

from plugrl.core.text.batch import Batch

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
