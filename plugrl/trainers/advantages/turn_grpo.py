"""GRPO by turns: each turn of a run is credited with the rewards from it on.

Source: process supervision in DeepSeekMath (arXiv 2402.03300), section 4.1.3, with turns as steps.
A turn is a span of trained tokens; its reward is the sum of those that it earned. The rewards of
all turns of a group are normalised together, r~ = (r - mean(r)) / (std(r) + epsilon) with the
sample deviation, and a turn's advantage is the sum of r~ over itself and the turns behind it. A
group of one run, or of equal rewards, has advantage 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.component import traits
from plugrl.core.config.schemas.schema import described
from plugrl.core.estimators import group_statistics
from plugrl.core.text.learn.advantages import rewards_of_tokens

if TYPE_CHECKING:
    from plugrl.core.text.batch import Batch


@dataclass
class TurnGrpoConfig:
    """Options of the advantage ``turn_grpo``."""

    normalize: bool = described(True, "divide by the deviation of the group's turns")
    epsilon: float = described(1e-6, "added to the deviation", at_least=0, at_most=1)


@traits(Config=TurnGrpoConfig, reads=(), compares_attempts=True)
def turn_grpo(
    rewards: torch.Tensor,
    group: torch.Tensor,
    run: torch.Tensor,
    valid: torch.Tensor,
    batch: Batch,
    config: Any,
) -> torch.Tensor:
    """Group-relative advantages of turns at their tokens, [R, T]; invalid rows get 0."""
    mask = (batch.values["loss_mask"] != 0) & valid[:, None]
    rows, turn_of_token, turns = _turns(mask)
    if not turns:
        return torch.zeros(mask.shape)
    earned = rewards_of_tokens(batch)[mask].double()
    of_turn = torch.zeros(turns, dtype=torch.float64).index_add_(0, turn_of_token, earned)
    row_of_turn = torch.zeros(turns, dtype=torch.long).index_copy_(0, turn_of_token, rows)
    # Every turn counts once in its group, as a run does in GRPO.
    every = torch.arange(turns)
    r, mean, std, _ = group_statistics(
        of_turn, group[row_of_turn], every, torch.ones(turns, dtype=torch.bool)
    )
    relative = r - mean
    if config.normalize:
        relative = relative / (std + config.epsilon)
    runs = group_statistics(rewards, group, run, mask.any(1)).runs
    relative = torch.where(runs[row_of_turn] > 1, relative, 0.0)
    advantages = torch.zeros(mask.shape, dtype=torch.float64)
    advantages[mask] = _from_it_on(relative, row_of_turn)[turn_of_token]
    return advantages.float()


def _turns(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """For each trained token its row and its turn, numbered over the batch; how many there are."""
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
    number = (mask & ~before).flatten().cumsum(0).view(mask.shape)
    turn_of_token = number[mask] - 1
    return mask.nonzero()[:, 0], turn_of_token, int(turn_of_token.max()) + 1 if mask.any() else 0


def _from_it_on(of_turn: torch.Tensor, row_of_turn: torch.Tensor) -> torch.Tensor:
    """Sums over each turn and those behind it in its row; turns stand in the order of rows."""
    total = of_turn.flip(0).cumsum(0).flip(0)
    # What belongs to later rows is taken away again.
    later = torch.searchsorted(row_of_turn, row_of_turn, right=True)
    return total - torch.nn.functional.pad(total, (0, 1))[later]
