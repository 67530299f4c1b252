"""Rows that are preferred or not: what losses over preferences have in common.

``batch.metadata["preferred"]`` ([B]) is 1 for a preferred answer and 0 for one that is not. A pair
is a unit of one of each. The loss of a row stands on its last trained token, so that aggregation
``seq-mean-token-sum`` gives the mean over rows, and over pairs when both rows hold their pair's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plugrl.core.errors import ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import last_trained
from plugrl.core.text.learn.losses import missing
from plugrl.core.text.learn.minibatches import unit_numbers

#: Key of the preferences in a batch's metadata, and extra field of a trajectory.
PREFERRED = "preferred"


def preferred_rows(batch: Batch, loss: str) -> torch.Tensor:
    """Which rows are preferred, [B], true or false.

    Raises:
        ContractError: the batch has no preferences; the message names the loss that needs them.
    """
    preferred = batch.metadata.get(PREFERRED)
    if not isinstance(preferred, torch.Tensor) or preferred.shape != (len(batch),):
        raise ContractError(f"loss {loss} needs {missing(PREFERRED)}")
    return preferred != 0


@dataclass(frozen=True)
class Pairs:
    """The pairs of a batch: ``chosen`` and ``rejected`` ([P]) are rows, ``of_row`` ([B]) the pair.

    ``of_row`` is -1 for rows without a trained token, which belong to no pair.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor
    of_row: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, loss: str) -> Pairs:
        """Find the pairs of a batch.

        Raises:
            ContractError: a unit is not one preferred row and one that is not.
        """
        preferred = preferred_rows(batch, loss).tolist()
        trained = batch.values["loss_mask"].ne(0).any(1).tolist()
        sides: dict[int, tuple[list[int], list[int]]] = {}
        for row, unit in enumerate(unit_numbers(batch).tolist()):
            if trained[row]:
                sides.setdefault(unit, ([], []))[preferred[row]].append(row)
        for unit, (rejected, chosen) in sides.items():
            if len(chosen) != 1 or len(rejected) != 1:
                raise ContractError(
                    f"loss {loss} compares pairs: unit {unit} has {len(chosen)} preferred and "
                    f"{len(rejected)} other rows with trained tokens, and one of each is expected; "
                    "batch.metadata['unit'] numbers the pairs"
                )
        of_row = torch.full((len(trained),), -1, dtype=torch.long)
        for pair, (rejected, chosen) in enumerate(sides.values()):
            of_row[[*rejected, *chosen]] = pair
        return cls(
            torch.tensor([chosen[0] for _, chosen in sides.values()], dtype=torch.long),
            torch.tensor([rejected[0] for rejected, _ in sides.values()], dtype=torch.long),
            of_row,
        )

    def spread(self, per_pair: torch.Tensor) -> torch.Tensor:
        """The number of each row's pair, [B], of numbers a pair, [P]; 0 where there is none."""
        zero = per_pair.new_zeros(1)
        return torch.cat([per_pair, zero])[self.of_row.to(per_pair.device)]


def row_sums(values: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """The sum of ``values`` ([B, T]) over the trained tokens of each row: [B]."""
    return torch.where(loss_mask != 0, values, 0.0).sum(1)


def on_last_token(per_row: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """``per_row`` ([B]) on the last trained token of each row, 0 elsewhere: [B, T]."""
    return last_token(loss_mask).to(per_row.dtype) * per_row[:, None]


def last_token(loss_mask: torch.Tensor) -> torch.Tensor:
    """Which token is the last trained one of its row: [B, T]; none in a row without any."""
    places = torch.arange(loss_mask.shape[1], device=loss_mask.device)
    return places == last_trained(loss_mask)[:, None]
