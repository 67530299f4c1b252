"""Passes over the rows of a step, each split into optimizer steps of whole units.

A unit is rows that a loss compares with each other, such as a chosen and a rejected answer:
``batch.metadata["unit"]`` ([B], whole numbers) is equal for them. Minibatches and micro-batches
hold whole units, so that a loss finds all rows that it compares. Without it, each row is a unit of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ContractError
from plugrl.core.text.batch import Batch


@dataclass
class PassesConfig:
    """How often a step learns from its trajectories."""

    epochs: int = described(1, "passes over the trajectories of a step", at_least=1, at_most=10**5)
    minibatches: int = described(1, "optimizer steps a pass", at_least=1, at_most=10**6)


def splits(passes: Any, seed: Sequence[int], size: int) -> Iterator[np.ndarray[Any, Any]]:
    """The places, among ``size``, that each optimizer step learns from.

    Args:
        passes: a :class:`PassesConfig`.
        seed: what the order of every pass depends on, besides its number.
        size: how many things are split: trajectories, or units of them.
    """
    for epoch in range(passes.epochs if size else 0):
        order = np.random.default_rng([*seed, epoch]).permutation(size)
        yield from np.array_split(order, min(passes.minibatches, size))


#: Key of the unit numbers in a batch's metadata.
UNIT = "unit"


def unit_numbers(batch: Batch) -> torch.Tensor:
    """The unit of each row, [B].

    Raises:
        ContractError: ``metadata["unit"]`` is not one whole number a row.
    """
    unit = batch.metadata.get(UNIT)
    rows = len(batch)
    if unit is None:
        return torch.arange(rows)
    if not isinstance(unit, torch.Tensor) or unit.dtype != torch.long or unit.shape != (rows,):
        shape = tuple(unit.shape) if isinstance(unit, torch.Tensor) else type(unit).__name__
        raise ContractError(
            f"metadata['unit'] is {shape}; a tensor of whole numbers (torch.long), one for each of "
            f"{rows} rows, is expected"
        )
    return unit


def rows_of_units(batch: Batch, units: torch.Tensor) -> torch.Tensor:
    """The rows of the units that ``units`` numbers in order of appearance, one after the other.

    Args:
        batch: rows.
        units: places in the sequence of the batch's units, as a permutation of it or a part.

    Returns:
        Rows, in the order of ``units`` and within each in the order of the batch.
    """
    if batch.metadata.get(UNIT) is None:
        return units.long()
    numbers = unit_numbers(batch).tolist()
    places: dict[int, int] = {}
    rows: list[list[int]] = []
    for row, number in enumerate(numbers):
        if places.setdefault(number, len(places)) == len(rows):
            rows.append([])
        rows[places[number]].append(row)
    return torch.tensor([row for unit in units.tolist() for row in rows[unit]], dtype=torch.long)


def unit_count(batch: Batch) -> int:
    """How many units a batch has."""
    if batch.metadata.get(UNIT) is None:
        return len(batch)
    return len(set(unit_numbers(batch).tolist()))


def with_their_units(batch: Batch, rows: torch.Tensor) -> torch.Tensor:
    """``rows`` ([B], true or false) and all other rows of their units."""
    if UNIT not in batch.metadata:
        return rows
    unit = unit_numbers(batch)
    return torch.isin(unit, unit[rows])


def repeated_units(batch: Batch, copies: int) -> torch.Tensor:
    """Unit numbers of ``copies`` copies of a batch, one after the other, each with its own units.

    Returns:
        [copies * B].
    """
    unit = unit_numbers(batch)
    span = int(unit.max()) + 1 if len(unit) else 0
    return torch.cat([unit + copy * span for copy in range(copies)])
