"""Parts of a batch for one forward and backward pass each, within a budget of rows or tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.minibatches import unit_numbers

#: Rows of a unit, their tokens, and those of the longest.
Size = tuple[int, int, int]


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a batch, on the device.

    ``rows`` are their numbers in the batch; ``leaders`` ([b]) names for each row the first one
    here that begins with the same prompt, itself if it is the first.
    """

    rows: torch.Tensor
    batch: Batch
    leaders: torch.Tensor


def micro_batches(
    batch: Batch, *, size: int, tokens: int | None, packs: bool, device: str, at_least: int = 1
) -> Iterator[MicroBatch]:
    """Split ``batch``; the longest rows come first, so that memory is tried at once.

    Rows of one unit are never split. Rows that begin with the same prompt stay together where they
    are packed. There are as few parts as the budget allows, or ``at_least``, and the largest is as
    small as that allows.

    Args:
        batch: rows on the CPU.
        size: rows of a part, when ``tokens`` is None.
        tokens: tokens of a part; a unit that has more, of rows or of tokens, forms a part of its
            own.
        packs: whether rows are packed and prompts shared; else they are padded to the longest.
        device: where the parts go.
        at_least: parts that are wanted, as far as there are units.
    """
    lengths = batch.values["attention_mask"].sum(1).tolist()
    prompts = _prompts(batch) if packs else list(range(len(lengths)))
    units = _order(_units(batch), lengths, prompts)
    if tokens is None:
        cost, budget = _rows_of, size
    else:
        cost, budget = (_packed if packs else _padded), tokens
    sizes = [(len(rows), sum(lengths[row] for row in rows), lengths[rows[0]]) for rows in units]
    for part_units in _equal_parts(sizes, cost, budget, at_least):
        rows = [row for unit in part_units for row in units[unit]]
        part = batch.select(rows)
        values = {name: value.to(device) for name, value in part.values.items()}
        first: dict[object, int] = {}
        leaders = [first.setdefault(prompts[row], place) for place, row in enumerate(rows)]
        yield MicroBatch(
            torch.tensor(rows),
            Batch(values, part.metadata),
            torch.tensor(leaders, device=device),
        )


def _prompts(batch: Batch) -> list[object]:
    """What the first prediction of each row is made from, to be compared.

    A row that predicts nothing is like no other.
    """
    ids, mask = batch.values["input_ids"].numpy(), batch.values["attention_mask"].numpy()
    # Token t is predicted from the real tokens up to t - 1; nothing predicts the first one.
    real = batch.values["attention_mask"][:, :-1] != 0
    predicted = (batch.values["loss_mask"][:, 1:] != 0) & real
    ends = (predicted.int().argmax(1) + 1).tolist()
    return [
        (ids[row, :end].tobytes(), mask[row, :end].tobytes()) if some else row
        for row, (end, some) in enumerate(zip(ends, predicted.any(1).tolist(), strict=True))
    ]


def _units(batch: Batch) -> list[list[int]]:
    """The rows of each unit, the longest first, in order of appearance."""
    lengths = batch.values["attention_mask"].sum(1).tolist()
    rows_of: dict[int, list[int]] = {}
    for row, unit in enumerate(unit_numbers(batch).tolist()):
        rows_of.setdefault(unit, []).append(row)
    return [sorted(rows, key=lambda row: -lengths[row]) for rows in rows_of.values()]


def _order(
    units: Sequence[list[int]], lengths: Sequence[int], prompts: Sequence[object]
) -> list[list[int]]:
    longest: dict[object, int] = {}
    number: dict[object, int] = {}
    for length, prompt in zip(lengths, prompts, strict=True):
        longest[prompt] = max(length, longest.get(prompt, 0))
        number.setdefault(prompt, len(number))

    def key(rows: list[int]) -> tuple[int, int, int]:
        first = rows[0]
        reach = max(longest[prompts[row]] for row in rows)
        return -reach, number[prompts[first]], -lengths[first]

    return sorted(units, key=key)


def _rows_of(rows: int, tokens: int, longest: int) -> int:
    return rows


def _packed(rows: int, tokens: int, longest: int) -> int:
    return tokens


def _padded(rows: int, tokens: int, longest: int) -> int:
    return rows * longest


def _equal_parts(
    sizes: Sequence[Size], cost: Callable[[int, int, int], int], budget: int, at_least: int
) -> list[range]:
    """As few parts of neighbouring units as a budget allows, or ``at_least``."""
    wanted = max(at_least, len(_parts(sizes, cost, budget)))
    # The smallest budget with which there are no more.
    smallest = bisect_left(
        range(budget), True, key=lambda given: len(_parts(sizes, cost, given)) <= wanted
    )
    parts = _parts(sizes, cost, smallest)
    while len(parts) < min(at_least, len(sizes)):
        most = max(parts, key=len)
        place, half = parts.index(most), most.start + len(most) // 2
        parts[place : place + 1] = [range(most.start, half), range(half, most.stop)]
    return parts


def _parts(sizes: Sequence[Size], cost: Callable[[int, int, int], int], budget: int) -> list[range]:
    """Fill one part after the other; a unit over the budget becomes a part by itself."""
    if not sizes:
        return []
    parts: list[range] = []
    start = rows = tokens = longest = 0
    for unit, (own_rows, own_tokens, own_longest) in enumerate(sizes):
        rows, tokens, longest = rows + own_rows, tokens + own_tokens, max(longest, own_longest)
        if unit > start and cost(rows, tokens, longest) > budget:
            parts.append(range(start, unit))
            start, rows, tokens, longest = unit, own_rows, own_tokens, own_longest
    return [*parts, range(start, len(sizes))]
